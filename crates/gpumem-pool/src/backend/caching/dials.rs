//! [`Dials`].

/// What the heap trades.
#[derive(Clone, Debug)]
pub(super) struct Dials {
    /// How far reserved memory may grow over the most that was ever in use before idle memory is mapped anew instead.
    pub(super) slack_per_mille: u32,
    /// The heap grows by at least this part of what it has.
    pub(super) growth_divisor: u32,
    /// The largest handle, in frames of 2 MiB: 1 to 64.
    pub(super) handle_max_frames: u32,
}

impl Default for Dials {
    fn default() -> Self {
        Self { slack_per_mille: 0, growth_divisor: 512, handle_max_frames: 16 }
    }
}
