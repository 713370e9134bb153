"""How the world comes in. A door parses, calls one action, renders; it never touches a store."""
