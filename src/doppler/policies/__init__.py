"""The networks of the dual policy (Sec. 4.2). They need torch."""
