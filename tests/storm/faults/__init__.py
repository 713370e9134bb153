"""What may befall a site, one kind a file."""
