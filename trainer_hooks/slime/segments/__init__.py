"""From a session's stored segments to the fields of slime's samples."""
