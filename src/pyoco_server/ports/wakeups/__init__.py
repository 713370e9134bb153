"""Wake-ups between the processes of a grid."""
