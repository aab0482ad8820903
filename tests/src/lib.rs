//! Shared by the tests across layers.
