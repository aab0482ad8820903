//! [`CacheBudget`]: grants and the cap.

use crate::cache::budget::CacheBudget;

#[test]
fn grants_stop_at_the_cap() {
    let budget = CacheBudget::new(100);
    assert_eq!(budget.grant(10, 60), 60);
    assert_eq!(budget.grant(10, 60), 40);
    assert_eq!(budget.grant(1, 1), 0);
    budget.give_back(5);
    assert_eq!(budget.grant(6, 60), 0);
    assert_eq!(budget.grant(5, 60), 5);
    assert_eq!(budget.granted_bytes(), 100);
}

#[test]
fn a_lower_cap_takes_nothing_away() {
    let budget = CacheBudget::new(100);
    assert_eq!(budget.grant(80, 80), 80);
    budget.set_cap(50);
    assert_eq!(budget.grant(1, 1), 0);
    budget.give_back(40);
    assert_eq!(budget.grant(1, 20), 10);
}

#[test]
fn sixteen_threads_never_pass_the_cap() {
    let budget = CacheBudget::new(1000);
    std::thread::scope(|scope| {
        for wanted_bytes in 1..=16 {
            let budget = &budget;
            scope.spawn(move || {
                for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
                    let grant_bytes = budget.grant(1, wanted_bytes * 30);
                    assert!(budget.granted_bytes() <= 1000);
                    budget.give_back(grant_bytes);
                }
            });
        }
    });
    assert_eq!(budget.granted_bytes(), 0);
}
