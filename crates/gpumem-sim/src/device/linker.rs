//! Links: PTX texts that become one module.

use crate::device::compiler_options::CompilerOptions;

/// A link that a program has begun.
pub(crate) struct Link {
    /// The texts, with the names that the program gave them.
    pub(crate) inputs: Vec<(String, String)>,
    pub(crate) options: CompilerOptions,
    /// The result, with a NUL at its end. The program has its address until it destroys the link.
    pub(crate) image: Option<Box<[u8]>>,
}
