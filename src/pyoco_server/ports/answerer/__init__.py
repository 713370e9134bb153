"""Who answers a question when it is not the context itself."""
