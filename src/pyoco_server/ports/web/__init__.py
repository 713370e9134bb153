"""The web, for packs that read it: one request at a time, to an address that was checked."""
