"""The subject of a prediction: a parallel plan, the framework that runs it, its pipeline schedule, and the job that they form.

Nothing here is public: what users may call is in `lumos`.
"""
