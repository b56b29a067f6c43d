"""Python's huggingface_hub as a second user of the hub that the tests re-enact: what it lists and downloads is what
lies on the disk. By hand, with huggingface_hub installed:

    python scripts/hub_check.py fixtures/v1-base/checkpoint
"""
import filecmp, os, pathlib, subprocess, sys, tempfile

source = pathlib.Path(sys.argv[1]).resolve()
with tempfile.TemporaryDirectory() as root:
    for name in "model", "gated":
        path = pathlib.Path(root, "org", name)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(source)
    program = pathlib.Path(root, "hub")
    subprocess.run(["go", "build", "-o", program, "./scripts/hub"], check=True)
    server = subprocess.Popen([program, root], stdout=subprocess.PIPE, text=True)
    try:
        os.environ.update(HF_ENDPOINT=server.stdout.readline().strip(), HF_HOME=root + "/home", HF_HUB_DISABLE_XET="1")
        from huggingface_hub import HfApi, errors, snapshot_download
        commit = HfApi().model_info("org/model").sha
        files = sorted(p.name for p in source.iterdir())
        assert sorted(f.path for f in HfApi().list_repo_tree("org/model")) == files
        got = snapshot_download("org/model", revision=commit)
        assert filecmp.cmpfiles(source, got, files, shallow=False)[0] == files
        try:
            snapshot_download("org/gated", revision=commit, token="hf_wrong")
            sys.exit("a gated repository was downloaded")
        except errors.HfHubHTTPError:
            pass
    finally:
        server.terminate()
print(f"huggingface_hub lists and downloads the same {len(files)} files")
