//! What is gone all at once.

use super::*;

#[tokio::test]
async fn many_objects_gone_at_once_are_held() {
    let mut bench = Bench::new();
    for index in 0..11 {
        bench.write(&format!("f{index}.yaml"), &agent(&format!("a{index}")));
    }
    bench.after(0).await;
    for index in 0..11 {
        bench.remove(&format!("f{index}.yaml"));
    }
    for _ in 0..2 {
        bench.settle().await;
        assert_eq!(bench.agents().await.len(), 11);
        assert!(bench.problem().unwrap().contains("11 objects are gone"));
        bench.restart();
    }
}

#[tokio::test]
async fn what_is_held_holds_nothing_that_goes_later_and_ends_when_it_is_deleted_by_hand() {
    let mut bench = Bench::new();
    for index in 0..12 {
        bench.write(&format!("f{index:02}.yaml"), &agent(&format!("a{index:02}")));
    }
    bench.after(0).await;
    for index in 0..11 {
        bench.remove(&format!("f{index:02}.yaml"));
    }
    bench.settle().await;
    assert!(bench.problem().unwrap().contains("11 objects are gone"));
    bench.settle().await;
    bench.remove("f11.yaml");
    bench.settle().await;
    bench.settle().await;
    assert_eq!(bench.agents().await.len(), 11);
    for index in 0..11 {
        bench.delete(Kind::Agent, &format!("a{index:02}")).await;
    }
    bench.settle().await;
    bench.settle().await;
    assert_eq!(bench.problem(), None);
}
