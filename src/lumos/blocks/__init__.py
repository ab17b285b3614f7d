"""What the parts of a model do on one rank: their work as blocks, what it costs, and the memory that it needs."""
