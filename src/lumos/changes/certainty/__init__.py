"""How far an answer can be believed: noise, what was not measured, what cannot be, and the trust in the recording."""
