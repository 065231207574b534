"""What the slime hooks raise. Each message names the field, its value and the remedy.

    HookError (ValueError)
    ├── SegmentError      a segment breaks the contract, so no sample may be made of it
    ├── RewardError       rewards cannot be normalised as asked
    ├── ConversionError   samples cannot become train data
    └── SettingError      a TITO_* variable or a key of --custom-config-path is wrong

Plain classes without state; safe everywhere.
"""

from __future__ import annotations


class HookError(ValueError):
    """Base of everything the slime hooks raise on purpose."""


class SegmentError(HookError):
    """A segment, or a session's set of segments, breaks the contract of `/trajectory/read`."""


class RewardError(HookError):
    """Rewards are of the wrong shape, or a trajectory has no anchor or several."""


class ConversionError(HookError):
    """The samples of a batch cannot be converted: lengths, presence of fields or batch size disagree."""


class SettingError(HookError):
    """A setting has a value that is not allowed."""
