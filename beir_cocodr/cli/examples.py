"""The examples at the end of each command's help."""

#: Every command with two or more command lines that can be typed, without the program's name.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "cache": (
        "cache",
        "cache --clear vectors --older-than 30",
    ),
    "quickstart": (
        "quickstart --fast",
        "quickstart --output runs/first --resume",
    ),
    "try": (
        "try my-folder/",
        "try my-folder/ --model runs/mine --port 8080 --no-browser",
    ),
    "search": (
        'search --dataset my-folder/ "how do I sort an array"',
        "search --dataset my-folder/ --model bm25 --queries questions.txt --json",
    ),
    "learn": (
        "learn minilm --dataset my-folder/ --judgements judged.tsv --output learned",
        "learn hybrid:minilm --dataset my-folder/ --judgements judged.tsv --output taught",
    ),
    "compare": (
        "compare bm25 minilm hybrid:minilm --dataset my-folder/",
        "compare minilm --dataset my-folder/ --judgements labels_wanted.tsv",
        "compare minilm runs/mine --dataset scifact --output runs/verdict",
    ),
    "gate": (
        "gate minilm runs/mine --dataset my-folder/",
        "gate yesterday.run today.run --dataset my-beir/ --margin 0.02",
    ),
    "adapt": (
        "adapt minilm --dataset my-folder/ --source scifact --output runs/mine",
        "adapt minilm --dataset my-folder/ --output runs/mine --max-steps 20",
    ),
    "fuse": (
        "fuse minilm --dataset my-folder/ --output runs/fused",
        "fuse minilm --dataset my-folder/ --bytes-per-document 2000 --output small",
    ),
    "evaluate": (
        "evaluate bm25 minilm --dataset scifact --output runs/scifact",
        "evaluate run:their.run --dataset my-beir/ --measures RR@10 --output judged",
    ),
    "report": (
        "report runs/mine",
        "report runs/mine --queries 200 --output for-the-team.html",
    ),
    "validate": (
        "validate --dataset my-folder/",
        "validate --dataset my-beir/ --split test",
    ),
    "doctor": (
        "doctor",
        "doctor --hub-timeout 1",
    ),
    "pretrain": (
        "pretrain minilm --dataset my-folder/ --preset cpu --output runs/coco",
        "pretrain minilm --dataset my-folder/ --output runs/coco --show-config",
    ),
    "finetune": (
        "finetune runs/coco --dataset scifact --target my-folder/ --output tuned",
        "finetune minilm --dataset scifact --weighting idro --set rho=0.1 --output tuned",
    ),
    "distill": (
        "distill minilm --dataset scifact --teacher hybrid --output student",
        "distill minilm --dataset scifact --teacher bm25 --student mrl --output mrl",
    ),
    "generate-queries": (
        "generate-queries --dataset my-folder/ --output runs/queries",
        "generate-queries --dataset my-folder/ --per-passage 3 --output runs/three",
    ),
    "export": (
        "export --dataset my-beir/ --form tevatron --output for-tevatron",
        "export --dataset my-beir/ --model bm25 --model minilm --output for-gpl",
    ),
    "encode": (
        "encode minilm --dataset my-folder/ --output store",
        "encode minilm --dataset my-folder/ --output store --update",
    ),
    "serve": (
        "serve bm25 hybrid:minilm --dataset my-folder/",
        "serve minilm runs/mine --dataset my-folder/ --keep-queries",
    ),
    "hand-over": (
        "hand-over minilm --dataset my-folder/ --to opensearch --output for-opensearch",
        "hand-over hybrid:minilm --dataset my-folder/ --to qdrant --output for-qdrant",
    ),
    "study qpp": (
        "study qpp minilm --dataset scifact --output runs/qpp",
        "study qpp runs/mrl --dataset scifact --output runs/predicted",
    ),
    "study shift": (
        "study shift --source scifact --target my-folder/",
        "study shift --source scifact --target my-folder/ --json",
    ),
    "study representation": (
        "study representation minilm --dataset my-folder/",
        "study representation minilm runs/mine --dataset my-folder/ --json",
    ),
    "study source-clusters": (
        "study source-clusters --source scifact --target nq --before minilm --after tuned",
        "study source-clusters --source fiqa --target nq --before minilm --after b --json",
    ),
    "study overlap": (
        "study overlap --train scifact --test my-beir/",
        "study overlap --train scifact --test my-beir/ --encoder minilm --json",
    ),
    "study resample restrain": (
        "study resample restrain --train fiqa --test nq --encoder minilm --output sets",
        "study resample restrain --train fiqa --test nq --encoder minilm --k 9 --output sets",
    ),
    "study resample resttest": (
        "study resample resttest --train fiqa --test nq --encoder minilm --output b5",
        "study resample resttest --train fiqa --test nq --encoder minilm --output b --buckets 3",
    ),
    "study resample evaluate": (
        "study resample evaluate --folder sets --architecture bm25 --output judged",
        "study resample evaluate --folder sets --architecture all --output judged",
    ),
    "irds": (
        "irds register my-beir/ my-corpus",
        "irds export my-corpus docs",
    ),
    "pyserini": (
        "pyserini search.faiss --index store --topics t.tsv --output their.run",
        "pyserini encode --help",
    ),
}
