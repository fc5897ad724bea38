//! Schedules by name.
