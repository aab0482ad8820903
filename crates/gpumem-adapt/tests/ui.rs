//! The errors of the compiler whose texts this project states. No message names a trait of elements that its
//! program does not name.

#[test]
#[ignore = "compiles all dependencies again; `cargo xtask ci messages` runs it"]
fn errors_are_at_the_field() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
    for message in std::fs::read_dir("tests/ui").expect("it is there").flatten() {
        let path = message.path();
        if path.extension().is_some_and(|extension| extension == "stderr") {
            let [text, program] = [&path, &path.with_extension("rs")]
                .map(|path| std::fs::read_to_string(path).expect("it is text"));
            let is_named = text.contains("Element") && !program.contains("Element");
            assert!(!is_named, "{} mentions `Element`", path.display());
        }
    }
}
