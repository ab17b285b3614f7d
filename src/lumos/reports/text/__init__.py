"""Print results as text for people; each file has the text of one verb.

Nothing here is public: what users may call is in `lumos`.
"""
