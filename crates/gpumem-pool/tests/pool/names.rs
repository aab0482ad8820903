//! The names of pools, wherever pools are told apart.

#![forbid(unsafe_code)]

use crate::fixture::{on_device_memory, on_each_backend, small};
use gpumem_pool::{Device, Pool, PoolUsage, Stream};

const MIB: u64 = 1 << 20;

fn names(pools: &[PoolUsage]) -> Vec<&str> {
    pools.iter().map(|pool| &*pool.name).collect()
}

#[test]
fn a_device_lists_its_pools_with_their_names() {
    on_each_backend(&small(), |fixture| {
        assert_eq!(Pool::list(&fixture.device), []);
        let pool = fixture.builder().name("training").hard_limit(64 * MIB).build().unwrap();
        let plain = fixture.pool();
        let cache = pool.private_named("cache", 32 * MIB).unwrap();
        let inner = cache.private(16 * MIB).unwrap();
        let own = plain.private(8 * MIB).unwrap();
        let number = |pool: &Pool| pool.id().to_string().replace("pool ", "");
        let [plain_name, inner_name] = [number(&plain), format!("training/cache/{}", number(&inner))];
        let own_name = format!("{plain_name}/{}", number(&own));
        assert_eq!((pool.name(), plain.name(), inner.name()), ("training", &*plain_name, &*inner_name));

        let block = inner.alloc(3 * MIB, &fixture.stream()).unwrap();
        let listed = Pool::list(&fixture.device);
        assert_eq!(names(&listed), ["training", &*plain_name, "training/cache", &*inner_name, &*own_name]);
        assert_eq!(
            listed.iter().map(|pool| pool.parent).collect::<Vec<_>>(),
            [None, None, Some(pool.id()), Some(cache.id()), Some(plain.id())]
        );
        let usage = listed.iter().find(|pool| pool.id == inner.id()).unwrap();
        assert_eq!((usage.in_use_bytes, usage.block_count), (3 * MIB, 1));
        assert!(usage.reserved_bytes >= 3 * MIB && usage.hard_limit_bytes == Some(16 * MIB));
        assert_eq!((usage.backend, usage.kind), (inner.backend(), inner.kind()));
        // Another `Device` of the GPU lists them too.
        assert_eq!(Pool::list(&Device::new(&fixture.driver, 0).unwrap()).len(), 5);

        // A block keeps its pool.
        drop((inner, plain));
        assert_eq!(
            names(&Pool::list(&fixture.device)),
            ["training", "training/cache", &*inner_name, &*own_name]
        );
        drop((block, own, cache, pool));
        assert_eq!(Pool::list(&fixture.device), []);
    });
}

#[test]
fn devices_list_their_own_pools() {
    let driver = gpumem_sim::driver(small().devices(2)).unwrap();
    let devices = [0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap());
    let pools = ["left", "right"].map(|name| {
        let device = &devices[usize::from(name == "right")];
        Pool::builder(device).name(name).hard_limit(8 * MIB).build().unwrap()
    });
    for (device, pool) in devices.iter().zip(&pools) {
        assert_eq!(names(&Pool::list(device)), [pool.name()]);
        let stream = Stream::new(device).unwrap();
        let headline = pool.alloc(9 * MIB, &stream).unwrap_err().to_string();
        let origin = format!("(device {}, pool {}, {})", device.ordinal(), pool.name(), stream.id());
        assert!(headline.lines().next().unwrap().ends_with(&origin), "{headline}");
    }
}

#[test]
fn the_status_of_a_parent_shows_its_private_pools() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().name("service\n1").hard_limit(64 * MIB).build().unwrap();
        let text = pool.status().unwrap().to_string();
        assert!(
            text.contains("\nMemory pool name: service\\n1\n") && !text.contains("private pool"),
            "{text}"
        );
        let cache = pool.private_named("cache", 32 * MIB).unwrap();
        let inner = cache.private_named("inner", 16 * MIB).unwrap();
        let other = fixture.pool();
        let _block = inner.alloc(2 * MIB, &fixture.stream()).unwrap();
        let status = pool.status().unwrap();
        assert_eq!((status.id, &*status.name), (pool.id(), "service\\n1"));
        assert_eq!(names(&status.private_pools), ["service\\n1/cache", "service\\n1/cache/inner"]);
        let text = status.to_string();
        let row = text.lines().find(|line| line.contains("cache/inner")).unwrap();
        assert!(row.contains("2.000 MiB") && row.contains("16.000 MiB") && row.ends_with(" 1"), "{text}");
        assert_eq!(names(&cache.status().unwrap().private_pools), ["service\\n1/cache/inner"]);
        let status = other.status().unwrap();
        assert!(status.private_pools.is_empty() && !status.to_string().contains("pool name"), "{status}");
        assert!(format!("{pool:?}").contains("name: \"service"), "{pool:?}");
    });
}

#[test]
fn a_report_names_the_pool_the_stream_and_the_tag() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().name("training").hard_limit(8 * MIB).build().unwrap();
        let stream = fixture.stream();
        let scope = pool.scope("batch\n2");
        let error = pool.alloc(9 * MIB, &stream).unwrap_err();
        let origin = format!("(device 0, pool training, {}, tag `batch\\n2`)", stream.id());
        assert!(error.to_string().lines().next().unwrap().ends_with(&origin), "{error}");
        let report = error.out_of_memory().unwrap();
        assert_eq!((&*report.pool, report.device_ordinal, report.stream), ("training", 0, Some(stream.id())));
        assert_eq!(
            (report.tag.as_deref(), report.limit_pool.as_deref()),
            (Some("batch\n2"), Some("training"))
        );
        if let Ok(mut growing) = pool.growable(16 * MIB, &stream) {
            drop(scope);
            let error = growing.grow_to(9 * MIB).unwrap_err();
            assert!(error.to_string().contains(&format!("{origin}\n")), "{error}");
            assert_eq!(error.out_of_memory().unwrap().stream, Some(stream.id()));
        }
        if let Err(error) = pool.reserve(9 * MIB) {
            assert!(error.to_string().contains("(device 0, pool training"), "{error}");
        }
    });
}

/// The limits of a pool and of its private pool may be equal.
#[test]
fn the_pool_of_the_limit_is_named() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().name("all").hard_limit(64 * MIB).build().unwrap();
        let [left, right] = ["left", "right"].map(|name| pool.private_named(name, 64 * MIB).unwrap());
        let stream = fixture.stream();
        let _held = [left.alloc(40 * MIB, &stream).unwrap(), pool.alloc(10 * MIB, &stream).unwrap()];
        let error = right.alloc(20 * MIB, &stream).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the limit of 64.000 MiB of pool all refused 20.000 MiB"), "{text}");
        assert!(
            text.contains(
                "other pools hold 50.000 MiB of the limit (the largest is pool all/left: 40.000 MiB)"
            )
        );
        assert!(text.contains("hard_limit of pool all"), "{text}");
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("      pool ")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows[0].contains("pool all/left") && rows[0].contains("40.000 MiB"), "{text}");
        assert!(rows[1].contains("pool all ") && rows[1].contains("10.000 MiB"), "{text}");
        let report = error.out_of_memory().unwrap();
        assert_eq!(report.limit_pool.as_deref(), Some("all"));
        assert_eq!(names(&report.limit_sharers), ["all/left", "all"]);

        let error = right.alloc(65 * MIB, &stream).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().limit_pool.as_deref(), Some("all/right"), "{error}");
    });
}

#[test]
fn other_pools_are_listed_by_name_and_the_smallest_as_a_sum() {
    on_device_memory(&small(), |fixture| {
        let stream = fixture.stream();
        let others: Vec<_> = (1..=6)
            .map(|index| {
                let pool = fixture.builder().name(format!("pool of {index}")).build().unwrap();
                let block = pool.alloc(index * 32 * MIB, &stream).unwrap();
                (pool, block)
            })
            .collect();
        let pool = fixture.pool();
        let error = pool.alloc(900 * MIB, &stream).unwrap_err();
        let text = error.to_string();
        let rows: Vec<_> =
            text.lines().skip_while(|line| !line.contains("  pools ")).skip(1).take(5).collect();
        assert!(rows[0].contains("pool pool of 6 ") && rows[0].contains("192.000 MiB"), "{text}");
        assert!(rows[3].contains("pool pool of 3 ") && rows[4].contains(" 2 more "), "{text}");
        assert!(rows[4].contains("96.000 MiB"), "{text}");
        assert!(text.contains("of this device (the largest is pool pool of 6: 192.000 MiB)"), "{text}");
        assert_eq!(error.out_of_memory().unwrap().other_pools.len(), others.len());
    });
}

/// Names of any text and length: reports show a part of them on one line, and fields have them as they are.
#[test]
fn names_of_any_text_are_shown_on_one_line() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        for name in ["x".repeat(65_536), "a\nb\u{1b}[31m\u{202e}".repeat(2_000), "模型\u{301}".repeat(2_000)]
        {
            let pool = fixture.builder().name(&name).hard_limit(8 * MIB).build().unwrap();
            let private = pool.private_named(&name, 4 * MIB).unwrap();
            let scope = pool.scope(&name);
            let block = pool.alloc(MIB, &stream).unwrap();
            let refused = [pool.alloc(64 * MIB, &stream), private.alloc(64 * MIB, &stream)];
            let status = pool.status().unwrap();
            assert_eq!(status.tags[0].tag, name);
            let mut texts =
                vec![status.to_string(), format!("{status:#}"), format!("{pool:?} {scope:?} {private:?}")];
            texts.extend(refused.map(|refused| refused.unwrap_err().to_string()));
            for text in texts {
                let is_plain = |letter: char| letter == '\n' || !letter.is_control() && letter != '\u{202e}';
                assert!(text.len() < 10_000 && text.chars().all(is_plain), "{text}");
                assert!(text.lines().all(|line| !line.starts_with("b\\u")), "{text}");
            }
            drop((scope, block));
        }
    });
}
