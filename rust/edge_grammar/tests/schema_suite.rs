//! The JSON Schema test suite (draft 2020-12) and the MaskBench slice: an invalid instance must never be accepted. A schema may be refused.

use edge_grammar::{State, Token, Vocabulary};
use serde_json::Value;
use std::path::{Path, PathBuf};

const END: u32 = 256;

#[derive(Default, Debug)]
struct Count {
    schemas: usize,
    refused: usize,
    refused_by_llguidance: usize, // as it comes: none of our limits, no warning taken as a refusal
    right: usize,
    wrongly_refused: usize,
    wrongly_accepted: Vec<String>,
}

fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<Token> = (0..=255u8)
        .map(|b| Token {
            text: vec![b],
            control: false,
        })
        .collect();
    tokens.push(Token {
        text: b"<|end|>".to_vec(),
        control: true,
    });
    Vocabulary::new(&tokens, &[END]).unwrap()
}

/// llguidance by itself, over the same single bytes.
fn llguidance_takes(schema: &Value) -> bool {
    thread_local! {
        static FACTORY: llguidance::ParserFactory = {
            let env = llguidance::toktrie::ApproximateTokEnv::single_byte_env();
            let mut factory = llguidance::ParserFactory::new_simple(&env).unwrap();
            factory.quiet();
            factory
        };
    }
    let grammar = llguidance::api::TopLevelGrammar::from_json_schema(schema.clone());
    FACTORY.with(|factory| factory.create_parser(grammar).is_ok())
}

/// One line for each suite: how often we refuse, and how often the library does.
fn print_counts(suite: &str, count: &Count) {
    let share = |n: usize| 100.0 * n as f64 / count.schemas as f64;
    println!(
        "{suite}: {} schemas, {} refused ({:.1} %; llguidance itself refuses {}, {:.1} %), {} instances right, {} wrongly refused, {} wrongly accepted",
        count.schemas, count.refused, share(count.refused), count.refused_by_llguidance, share(count.refused_by_llguidance),
        count.right, count.wrongly_refused, count.wrongly_accepted.len()
    );
}

fn accepts(vocabulary: &Vocabulary, grammar: &str, text: &str) -> bool {
    let mut g = vocabulary.compile(grammar).unwrap();
    let mut mask = [0u32; 9];
    for byte in text.bytes() {
        match g.fill_mask(&mut mask) {
            Ok(State::Open) if mask[byte as usize / 32] >> (byte % 32) & 1 == 1 => {}
            _ => return false,
        }
        if g.accept(byte as u32).is_err() {
            return false;
        }
    }
    g.is_complete()
}

fn data_folder(name: &str) -> Option<PathBuf> {
    let shared = std::env::var("TIE_SHARED_DATA")
        .map(PathBuf::from)
        .unwrap_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"));
    let path = shared.join(name);
    path.exists().then_some(path)
}

fn run_group(v: &Vocabulary, file: &str, group: &Value, count: &mut Count) {
    count.schemas += 1;
    let grammar = serde_json::json!({"grammars": [{"json_schema": group["schema"]}]}).to_string();
    count.refused_by_llguidance += !llguidance_takes(&group["schema"]) as usize;
    if v.compile(&grammar).is_err() {
        count.refused += 1;
        return;
    }
    for test in group["tests"].as_array().into_iter().flatten() {
        let accepted = accepts(v, &grammar, &test["data"].to_string());
        match (test["valid"].as_bool().unwrap_or(false), accepted) {
            (true, true) | (false, false) => count.right += 1,
            (true, false) => count.wrongly_refused += 1,
            (false, true) => count.wrongly_accepted.push(format!(
                "{file}: {} / {}",
                group["description"], test["description"]
            )),
        }
    }
}

#[test]
fn the_json_schema_suite_has_no_wrong_accepts() {
    let Some(folder) = data_folder("json_schema_suite/draft2020-12") else {
        eprintln!("skipped: ../shared/data/json_schema_suite is not here");
        return;
    };
    let v = vocabulary();
    let mut count = Count::default();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let groups: Value =
                serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            for group in groups.as_array().unwrap() {
                run_group(
                    &v,
                    &path.file_name().unwrap().to_string_lossy(),
                    group,
                    &mut count,
                );
            }
        }
    }
    print_counts("JSON Schema suite", &count);
    assert!(count.schemas > 100);
    assert!(
        count.wrongly_accepted.is_empty(),
        "{:#?}",
        count.wrongly_accepted
    );
}

#[test]
fn maskbench_has_no_wrong_accepts() {
    let Some(archive) = data_folder("schema_bench/maskbench_1500.tar.zst") else {
        eprintln!("skipped: ../shared/data/schema_bench is not here");
        return;
    };
    let folder = std::env::temp_dir().join(format!("tie-maskbench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let unpacked = std::process::Command::new("tar")
        .arg("--zstd")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&folder)
        .status();
    if !unpacked.is_ok_and(|s| s.success()) {
        eprintln!("skipped: tar cannot unpack zstd here");
        return;
    }
    let v = vocabulary();
    let mut count = Count::default();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder.join("maskbench"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    // All of them take 20 s of CPU: every fifth unless asked.
    let step = if std::env::var_os("TIE_ALL_SCHEMAS").is_some() {
        1
    } else {
        5
    };
    for path in paths.iter().step_by(step) {
        let group: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        run_group(
            &v,
            &path.file_name().unwrap().to_string_lossy(),
            &group,
            &mut count,
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
    print_counts("MaskBench", &count);
    assert!(count.schemas >= 300);
    assert!(
        count.wrongly_accepted.is_empty(),
        "{:#?}",
        count.wrongly_accepted
    );
}
