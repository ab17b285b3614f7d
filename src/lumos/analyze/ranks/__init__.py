"""The ranks of a job against each other: equal work, the ideal job, and what each slow rank costs.

Nothing here is public: what users may call is in `lumos`.
"""
