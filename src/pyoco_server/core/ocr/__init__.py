"""OCR: page layout, choice of engine, merging and marking of readings, output documents. No engine code and no
files."""
