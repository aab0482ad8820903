//! Options of the environment.

use super::*;
use crate::config::Tuning;
use gpumem_device::Stream;
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
    assert!(
        said.contains("invalid limit 5% (hard_limit) for host memory (kind in GPUMEM_CONF), because"),
        "{said}"
    );
    assert!(of(&variables).kind(MemoryKind::Device).build().is_ok());
    assert!(of(&variables).soft_limit(8 << 20).build().is_ok());
}

#[test]
fn limits_are_given_as_text_too_and_a_mistake_is_the_error_of_build() {
    let status =
        of(&[]).hard_limit("64MiB").soft_limit(String::from("1%")).build().unwrap().status().unwrap();
    let device_bytes = status.device_total_bytes;
    assert_eq!(
        (status.hard_limit_bytes, status.soft_limit_bytes),
        (Some(64 << 20), Some(device_bytes / 100))
    );
    let error = of(&[]).hard_limit("lots").soft_limit("more").hard_limit("64MiB").build().unwrap_err();
    assert!(
        matches!(&error, PoolError::Config(ConfigError::LimitSyntax { value }) if value == "lots"),
        "{error}"
    );
    let pool = of(&[("GPUMEM_HARD_LIMIT", "25% Free")]).build().unwrap();
    assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(device_bytes / 4));
    for error in [
        pool.set_hard_limit("lots").unwrap_err(),
        pool.set_soft_limit("lots").unwrap_err(),
        pool.private("lots").unwrap_err(),
    ] {
        assert!(error.to_string().starts_with("invalid memory limit \"lots\"; expected bytes"), "{error}");
    }
}

#[test]
fn options_that_contradict_each_other_are_both_named() {
    let refused = |conf: &str| {
        let built = of(&[]).conf(conf).map_err(PoolError::from).and_then(PoolBuilder::build);
        built.unwrap_err().to_string()
    };
    for (conf, one, other) in [
        ("exportable:true,expandable_segments:false", "exportable", "expandable_segments"),
        ("no_caching:true,backend:caching", "no_caching", "backend"),
        ("hard_limit:1GiB,per_process_memory_fraction:0.5", "per_process_memory_fraction", "hard_limit"),
        ("kind:host,hard_limit:50%", "hard_limit", "kind"),
        ("kind:HOST,soft_limit:50%free", "soft_limit", "kind"),
        ("exportable:true,backend:none", "exportable", "backend"),
    ] {
        let said = refused(conf);
        assert!(said.contains(one) && said.contains(other), "{conf}: {said}");
    }
    #[cfg(feature = "backend-native")]
    for (conf, one) in
        [("rdma:true,backend:native", "rdma:true"), ("exportable:true,backend:native", "exportable:true")]
    {
        let said = refused(conf);
        assert!(said.contains(one) && said.contains("the backend `native`"), "{conf}: {said}");
    }
    #[cfg(feature = "backend-caching")]
    assert!(
        refused("exportable:true,kind:host,backend:caching")
            .contains("kind `host` cannot be exported as descriptors (exportable:true)")
    );
}

#[test]
fn values_are_read_in_any_case() {
    let pool = of(&[("GPUMEM_POOL", "NONE"), ("GPUMEM_KIND", "Host"), ("GPUMEM_HARD_LIMIT", "64mib")])
        .build()
        .unwrap();
    assert_eq!((pool.backend(), pool.kind()), (BackendKind::None, MemoryKind::Host));
    let pool = of(&[("GPUMEM_CONF", "Backend:None, OVERSUBSCRIBE:True, profile:Fast, hard_limit:50%FREE")])
        .build()
        .unwrap();
    assert_eq!(pool.backend(), BackendKind::None);
}

#[test]
fn a_soft_limit_above_the_hard_one_is_reported_as_ignored() {
    let backends = [
        #[cfg(feature = "backend-caching")]
        BackendKind::Caching,
        #[cfg(feature = "backend-native")]
        BackendKind::Native,
        BackendKind::None,
    ];
    let notices = |pool: &Pool| pool.ignored_options().iter().map(ToString::to_string).collect::<Vec<_>>();
    for backend in backends {
        let pool = |soft_bytes| {
            let builder = of(&[("GPUMEM_HARD_LIMIT", "64MiB")]).backend(backend).soft_limit(soft_bytes);
            builder.build().unwrap()
        };
        let is_told = |notices: &[String]| match notices {
            [notice] => notice.contains(&format!(
                "soft_limit has no effect on the backend {backend}: it is above the hard limit"
            )),
            _ => false,
        };
        // The backend `none` ignores every soft limit.
        let is_told_below = notices(&pool(64 << 20)).iter().any(|notice| notice.contains("above"));
        assert!(!is_told_below, "{backend}");
        // The driver's pool may cache up to its bound, which is rounded up from the hard limit to 96 MiB.
        let is_told_between = is_told(&notices(&pool((96 << 20) - 1)));
        assert_eq!(is_told_between, backend != BackendKind::Native, "{backend}");
        let pool = pool(96 << 20);
        assert!(is_told(&notices(&pool)), "{:?}", notices(&pool));
        let status = pool.status().unwrap().to_string();
        let line = "Memory limit: soft = 96.000 MiB (no effect: above the hard limit), hard = 64.000 MiB\n";
        assert!(status.contains(line), "{status}");
        // Also one that is set later.
        let pool = of(&[]).backend(backend).hard_limit("64MiB").build().unwrap();
        pool.set_soft_limit("100MiB").unwrap();
        assert!(is_told(&notices(&pool)), "{:?}", notices(&pool));
        pool.set_soft_limit("64MiB").unwrap();
        assert!(notices(&pool).is_empty(), "{:?}", notices(&pool));
        // The driver's pool has no bound if there was no hard limit at first, so the soft limit has an effect.
        let pool = of(&[]).backend(backend).build().unwrap();
        pool.set_soft_limit("100MiB").unwrap();
        assert!(notices(&pool).is_empty(), "{:?}", notices(&pool));
        pool.set_hard_limit("64MiB").unwrap();
        let status = pool.status().unwrap().to_string();
        let is_idle = backend != BackendKind::Native;
        assert_eq!((is_told(&notices(&pool)), status.contains("no effect")), (is_idle, is_idle), "{status}");
    }
}

/// The limit is raised where it was set: a variable has no effect on a limit of the builder.
#[test]
fn a_refusal_names_the_place_of_the_limit() {
    let refused = |pool: &Pool| {
        let stream = Stream::new(pool.device()).unwrap();
        pool.alloc(80 << 20, &stream).unwrap_err().to_string()
    };
    let variable = of(&[("GPUMEM_HARD_LIMIT", "64MiB")]);
    let conf = ("GPUMEM_CONF", "hard_limit:64MiB");
    let later = of(&[]).build().unwrap();
    later.set_hard_limit(64 << 20).unwrap();
    for (pool, place) in [
        (variable.clone().build().unwrap(), "(GPUMEM_HARD_LIMIT, or Pool::set_hard_limit)"),
        (
            variable.hard_limit(48 << 20).build().unwrap(),
            "(PoolBuilder::hard_limit, or Pool::set_hard_limit)",
        ),
        (of(&[conf]).build().unwrap(), "(hard_limit in GPUMEM_CONF, or Pool::set_hard_limit)"),
        (
            of(&[conf]).hard_limit(48 << 20).build().unwrap(),
            "(PoolBuilder::hard_limit, or Pool::set_hard_limit)",
        ),
        (later, "(Pool::set_hard_limit)"),
    ] {
        let text = refused(&pool);
        assert!(text.contains(place), "{place}: {text}");
    }
}

/// Pools built like those of [`Pool::for_device`] have mapped memory only on devices with a link to every other device.
#[cfg(feature = "backend-caching")]
#[test]
fn a_default_pool_has_plain_segments_where_a_link_is_missing() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(3).without_link(0, 2)).unwrap();
    for (ordinal, is_plain) in [(0, true), (1, false), (2, true)] {
        let device = Device::new(&driver, ordinal).unwrap();
        let status = PoolBuilder::new(&device).copied_by_address().build().unwrap().status().unwrap();
        assert_eq!(status.plain_segments_reason.is_some(), is_plain, "device {ordinal}");
        assert!(Pool::new(&device).unwrap().status().unwrap().plain_segments_reason.is_none());
    }
}
