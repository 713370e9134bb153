"""`/v1`: priced runs. Every answer says what it cost; every refusal is a problem document (RFC 9457)."""
