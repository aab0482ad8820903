//! Named options: parsing, and the texts of errors.

use super::*;
use crate::PoolBuilder;
use crate::config::MemoryKind;
use crate::device::Device;
use gpumem_sim::SimConfig;

fn applied(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    apply(&mut config, text, None).map(|()| config)
}

fn mistake(text: &str) -> String {
    applied(text).unwrap_err().to_string()
}

#[test]
fn values_arrive_whatever_their_order_and_case() {
    let options =
        applied(" Growth_Slack: 7 , PROFILE:tight,handle_bytes_max:8MiB,backend:cudaMallocAsync, ").unwrap();
    assert_eq!(options.tuning, Tuning::of(Profile::Tight).growth_slack(7).handle_bytes_max(8 << 20));
    assert_eq!(options.backend, Some(BackendKind::Native));
    let options = applied("no_caching:True,per_process_memory_fraction:0.5,wait_deadline_ms:20").unwrap();
    assert_eq!((options.backend, options.hard_limit), (Some(BackendKind::None), Some(Limit::Percent(50.0))));
    assert_eq!(options.tuning.wait_deadline, Duration::from_millis(20));
    assert!(applied("").unwrap().asked.is_empty());
    let options = applied("kind:unified,roundup_power2_divisions:[64:1, >:2],no_caching:true").unwrap();
    assert_eq!((options.kind, options.backend), (MemoryKind::Unified, Some(BackendKind::None)));
    assert_eq!(options.tuning.rounding, "[64:1,>:2]".parse().unwrap());
}

/// PyTorch's `native`, its own cache over plain memory, is `caching` here.
#[test]
fn backends_go_by_both_projects_names() {
    for (name, backend) in [
        ("cudaMallocAsync", BackendKind::Native),
        ("native", BackendKind::Native),
        ("caching", BackendKind::Caching),
        ("none", BackendKind::None),
    ] {
        assert_eq!(applied(&format!("backend:{name}")).unwrap().backend, Some(backend));
    }
}

/// One of the examples is valid for each option; an invalid word is refused with the valid forms.
#[test]
fn every_option_takes_its_forms_and_says_them() {
    for key in KEYS {
        let examples = ["0.5", "8", "32", "64MiB", "true", "none", "fast", "host"];
        let outcome = examples.iter().any(|value| applied(&format!("{}:{value}", key.name)).is_ok());
        assert!(outcome, "{}", key.name);
        let said = mistake(&format!("{}:perhaps", key.name));
        assert!(said.contains(key.expected) && said.contains("perhaps"), "{said}");
    }
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    assert!(mistake("growth_slak:3").contains("did you mean growth_slack?"));
    for (short, whole) in [
        ("max_split_mb", "max_split_size_mb"),
        ("garbage_collection", "garbage_collection_threshold"),
        ("memory_fraction", "per_process_memory_fraction"),
    ] {
        let said = mistake(&format!("{short}:1"));
        assert!(said.contains(&format!("did you mean {whole}?")), "{said}");
    }
    assert!(!mistake("something_else_entirely:3").contains("did you mean"));
    assert!(mistake("growth_slack").contains("key:value"));
    assert!(mistake("growth_slack:1,growth_slack:2").contains("given twice"));
    assert!(mistake("hard_limit:1GiB,per_process_memory_fraction:0.1").contains("contradicts hard_limit"));
    assert!(mistake("backend:native,no_caching:true").contains("contradicts backend"));
    let unordered = mistake("growth_slack:1,roundup_power2_divisions:[256:1,128:2],kind:host");
    assert!(
        unordered.contains(
            "invalid option roundup_power2_divisions:[256:1,128:2], at character 8, `128:2`: sizes"
        ),
        "{unordered}"
    );
    for text in [
        "garbage_collection_threshold:1.5",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:1,128:2],soft_limit:1GiB",
        "soft_limit:1GiB,roundup_power2_divisions:[256:1,kind:host",
        "growth_slack:-1",
        "max_split_size_mb:8",
        "handle_bytes_max:5%",
    ] {
        assert!(mistake(text).contains("expected"), "{text}");
    }
}

#[test]
fn what_has_no_effect_is_told_for_each_backend() {
    let mut options = applied("").unwrap();
    options.asked = ["max_split_size_mb", "soft_limit", "window_allowance", "profile", "backend"].into();
    let told = |backend, can_map| {
        ignored_options(&options, backend, can_map).iter().map(|notice| notice.option).collect::<Vec<_>>()
    };
    assert_eq!(told(BackendKind::Caching, true), ["max_split_size_mb"]);
    assert_eq!(told(BackendKind::Caching, false), ["window_allowance"]);
    assert_eq!(told(BackendKind::Native, false), ["profile", "max_split_size_mb", "window_allowance"]);
    assert_eq!(
        told(BackendKind::None, false),
        ["profile", "soft_limit", "max_split_size_mb", "window_allowance"]
    );
}

#[test]
fn a_variable_of_its_own_wins_and_keeps_what_others_say() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let of = |variables: &[(&str, &str)]| {
        let read = |name: &'static str| {
            Ok(variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_string()))
        };
        PoolBuilder::from_variables(&device, read).unwrap()
    };
    let tight = Tuning::of(Profile::Tight);
    for conf in ["growth_slack:7", "growth_slack:7,profile:fast"] {
        let options = of(&[("GPUMEM_CONF", conf), ("GPUMEM_PROFILE", "tight")]);
        assert_eq!(options.setup.config.tuning, tight.clone().growth_slack(7));
    }
    assert_eq!(of(&[("GPUMEM_CONF", "profile:tight")]).setup.config.tuning, tight);
    assert_eq!(of(&[]).setup.config.tuning, Tuning::default());
    let options = of(&[("GPUMEM_POOL", "none"), ("GPUMEM_PROFILE", "fast"), ("GPUMEM_SOFT_LIMIT", "5%")]);
    let told = options.build().unwrap().ignored_options();
    assert_eq!(told.iter().map(|notice| notice.option).collect::<Vec<_>>(), ["profile", "soft_limit"]);
}

/// The rows of a table in a file's documentation: the names in the first cell, and the other cells.
fn rows(source: &'static str) -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"));
    let row = |line: &'static str| {
        let mut cells = line.split(" | ");
        let names = cells.next().unwrap_or_default().split('`').skip(1).step_by(2);
        (names.collect::<Vec<_>>(), cells.collect::<Vec<_>>())
    };
    lines
        .map(row)
        .filter(|(names, cells)| !names.is_empty() && cells[0] != "value" && cells[0] != "`fast`")
        .collect()
}

#[test]
fn the_table_has_every_option_and_no_other() {
    let rows = rows(include_str!("../conf.rs"));
    let mut told: Vec<&str> = rows.iter().flat_map(|(names, _)| names).copied().collect();
    let mut known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    told.sort_unstable();
    known.sort_unstable();
    assert_eq!(told, known);
}

#[test]
fn the_table_of_tuning_options_has_them_all_with_what_profiles_set_them_to() {
    let source = include_str!("../tuning.rs");
    let rows = rows(source);
    assert_eq!(rows.len(), source.matches("(mut self, ").count(), "a row for each setter");
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    for (column, profile) in [Profile::Fast, Profile::Balanced, Profile::Tight].into_iter().enumerate() {
        let mut told = Tuning::default();
        for (names, cells) in &rows {
            assert!(cells.len() == 5 && cells[3..].iter().all(|cell| !cell.is_empty()), "{names:?}");
            let (name, value) = (names[0], cells[column].replace([' ', '‰'], ""));
            // In the form of `GPUMEM_CONF`.
            let (key, value) = match name {
                // `none` has no numeric form.
                "split_bytes_max" | "window_allowance" if value == "none" => continue,
                "inserted_waits" => (name.into(), (value == "on").to_string()),
                "poll_budget" | "release_budget" => (format!("{name}_us"), value.replace("µs", "")),
                "wait_deadline" => (format!("{name}_ms"), value.replace('s', "000")),
                _ => (name.to_string(), value),
            };
            let builder = PoolBuilder::new(&device).tuning(told).conf(&format!("{key}:{value}"));
            told = builder.unwrap_or_else(|error| panic!("{name}: {error}")).setup.config.tuning;
        }
        assert_eq!(told, Tuning::of(profile));
    }
}
