"""The doors there are."""
