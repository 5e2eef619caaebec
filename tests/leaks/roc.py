"""Area under the ROC curve with a confidence interval after DeLong, without a statistics library."""
import bisect
import math
import statistics

DEVIATIONS = 3.29  # two-sided 99.9 %: a fair coin fails one run of a thousand


def placements(of, others):
    """For each value the share of `others` below it; equal ones count half."""
    others = sorted(others)
    return [(bisect.bisect_left(others, v) + bisect.bisect_right(others, v)) / 2 / len(others) for v in of]


def area(fast, slow):
    """(AUC, low, high): how often a value of `slow` exceeds one of `fast`."""
    above, below = placements(slow, fast), placements(fast, slow)
    value = statistics.fmean(above)
    error = math.sqrt(statistics.variance(above) / len(slow) + statistics.variance(below) / len(fast))
    return value, value - DEVIATIONS * error, value + DEVIATIONS * error
