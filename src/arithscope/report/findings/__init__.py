"""What the results of a run show: for each figure one or two sentences, worded from the results it is drawn from.

A finding claims no more than its intervals allow: a difference is called clear only if its interval excludes zero.
"""
