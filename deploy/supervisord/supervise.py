"""Debian's supervisord as it is, but for how often it looks after its programs: ten times a second instead of once. At the start, at the end of a program and at
its own end it waits for its next look, which was two of the three seconds of a recycle."""
from supervisor import poller, supervisord

LOOK_S = 0.1
poll = poller.Poller.poll
poller.Poller.poll = lambda self, timeout: poll(self, min(timeout, LOOK_S))
supervisord.main()
