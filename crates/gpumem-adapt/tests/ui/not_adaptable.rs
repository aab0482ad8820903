//! A value whose type has no rule.

use gpumem_adapt::{Adapt, Host};

struct Layer;

fn main() {
    let _ = vec![Layer].adapt(&Host);
}
