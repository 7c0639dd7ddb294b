"""What a subject shows: for each figure a sentence or two, computed from the results that the figure is drawn from.

A finding says no more than its intervals allow: where one includes zero there is no clear difference.
"""
