//! Options of the environment.

use super::*;
use crate::config::Tuning;
use gpumem_sim::SimConfig;

fn of(variables: &[(&str, &str)]) -> PoolBuilder {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let value = |name| variables.iter().find(|(other, _)| *other == name);
    let read = |name| Ok(value(name).map(|(_, value)| (*value).to_owned()));
    PoolBuilder::from_variables(&device, read).unwrap()
}

fn tuning(variables: &[(&str, &str)]) -> Tuning {
    Config::new(&of(variables).options).unwrap().tuning
}

fn with_slack(profile: Profile, per_mille: u32) -> Tuning {
    let mut tuning = Tuning::from(profile);
    tuning.heap.growth_slack_per_mille = per_mille;
    tuning
}

#[test]
fn a_profile_of_the_environment_leaves_tuning_options_that_are_named() {
    let conf = ("GPUMEM_CONF", "growth_slack:77,profile:fast");
    assert_eq!(tuning(&[conf]), with_slack(Profile::Fast, 77));
    assert_eq!(tuning(&[conf, ("GPUMEM_PROFILE", "TIGHT")]), with_slack(Profile::Tight, 77));
    assert_eq!(tuning(&[("GPUMEM_PROFILE", "tight")]), Profile::Tight.into());
    assert_eq!(tuning(&[]), Tuning::default());
    let builder = of(&[conf]).profile(Profile::Tight);
    assert_eq!(Config::new(&builder.options).unwrap().tuning, with_slack(Profile::Tight, 77));
}

#[test]
fn a_variable_of_its_own_wins_and_keeps_what_others_say() {
    for conf in ["growth_slack:7", "growth_slack:7,profile:fast"] {
        let variables = [("GPUMEM_CONF", conf), ("GPUMEM_PROFILE", "tight")];
        assert_eq!(tuning(&variables), with_slack(Profile::Tight, 7));
    }
    assert_eq!(tuning(&[("GPUMEM_CONF", "profile:tight")]), Profile::Tight.into());
    let options = of(&[("GPUMEM_POOL", "none"), ("GPUMEM_PROFILE", "fast"), ("GPUMEM_SOFT_LIMIT", "5%")]);
    let ignored = options.build().unwrap().ignored_options();
    assert_eq!(ignored.iter().map(|notice| notice.option).collect::<Vec<_>>(), ["profile", "soft_limit"]);
}

#[test]
fn a_share_of_host_memory_names_the_variables_and_calls_that_set_it() {
    let refused = |builder: PoolBuilder| builder.build().unwrap_err().to_string();
    let variables = [("GPUMEM_KIND", "Host"), ("GPUMEM_SOFT_LIMIT", "50%")];
    let said = refused(of(&variables));
    assert!(
        said.contains("invalid limit 50% (GPUMEM_SOFT_LIMIT) for host memory (GPUMEM_KIND), because"),
        "{said}"
    );
    let said = refused(of(&[("GPUMEM_CONF", "kind:host")]).hard_limit(Limit::Percent(5.0)));
    assert!(said.contains("invalid limit 5% (hard_limit) for host memory (kind), because"), "{said}");
    assert!(of(&variables).kind(MemoryKind::Device).build().is_ok());
    assert!(of(&variables).soft_limit(8 << 20).build().is_ok());
}

#[cfg(feature = "backend-caching")]
#[test]
fn a_soft_limit_above_the_hard_one_is_reported_as_ignored() {
    let ignored = |soft_bytes| {
        let builder = of(&[("GPUMEM_HARD_LIMIT", "64MiB")]).soft_limit(soft_bytes);
        builder.build().unwrap().ignored_options().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(ignored(64 << 20).is_empty());
    let ignored = ignored((64 << 20) + 1);
    assert!(matches!(&ignored[..], [option] if option.contains("above the hard limit")), "{ignored:?}");
}
