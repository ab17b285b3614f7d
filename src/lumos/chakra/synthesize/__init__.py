"""Sets of other sizes drawn from what recorded sets have in common."""
