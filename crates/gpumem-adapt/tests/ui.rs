//! The errors of the compiler whose texts this project states. None of the messages names the traits of elements.

#[test]
#[ignore = "compiles all dependencies again; `cargo xtask ci messages` runs it"]
fn errors_are_at_the_field() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
    for message in std::fs::read_dir("tests/ui").expect("it is there").flatten() {
        let path = message.path();
        if path.extension().is_some_and(|extension| extension == "stderr") {
            let text = std::fs::read_to_string(&path).expect("it is text");
            assert!(!text.contains("Element"), "{} mentions `Element`", path.display());
        }
    }
}
