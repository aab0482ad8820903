//! The errors of the compiler for types that cannot be adapted. None of the messages is about the traits of elements, except where the
//! program itself names an array of elements that are not plain bytes.

#[test]
fn errors_are_at_the_field() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
    for message in std::fs::read_dir("tests/ui").expect("it is there").flatten() {
        let path = message.path();
        let is_of_elements = path.file_stem().is_some_and(|name| name == "text_array");
        if path.extension().is_some_and(|extension| extension == "stderr") && !is_of_elements {
            let text = std::fs::read_to_string(&path).expect("it is text");
            assert!(!text.contains("Element"), "{} mentions `Element`", path.display());
        }
    }
}
