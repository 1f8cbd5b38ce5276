"""`relbo bench`: what a step costs, against its own matrix products and against other libraries.

All figures are ratios within one run, of contenders that take turns; absolute times depend on the machine and the hour.
"""
