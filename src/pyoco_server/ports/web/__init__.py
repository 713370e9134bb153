"""HTTP for packs that read the web: one request at a time, to an address that was checked."""
