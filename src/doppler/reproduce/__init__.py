"""The paper, table by table: its figures, ours, and what follows from them (`dop reproduce`)."""
