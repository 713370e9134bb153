"""The answerer of questions that the context itself does not answer."""
