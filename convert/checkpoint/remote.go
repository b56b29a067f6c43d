package checkpoint

// Checkpoints that lie on a server: hf://ORG/NAME, s3://BUCKET/PREFIX, https://HOST/DIR/.

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text/problem"
)

// companions are files that stand beside weights. Of a server that lists no directory they are asked for.
var companions = []string{ConfigName, mistral.Config, ModelOptName, "adapter_config.json", "dsmoe.manifest.json", "generation_config.json", "tokenizer.json",
	"tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
	"chat_template.jinja", "configuration_deepseek.py", "modeling_deepseek.py"}

// IsRemote reports whether path is a URL that Open takes.
func IsRemote(path string) bool { return remote.Is(path) }

// NamesFile reports whether a file of that name may stand for a checkpoint in a path.
func NamesFile(name string) bool {
	return IsWeights(name) || IsIndex(name) || filepath.Ext(name) == filepath.Ext(ConfigName)
}

// locateRemote resolves a URL.
func (o Opener) locateRemote(path string) (*location, error) {
	if model, ok := strings.CutPrefix(path, "hf://"); ok && remote.Offline() {
		dir, err := offline(path, model)
		if err != nil {
			return nil, err
		}
		return locateDir(dir)
	}
	names := slices.Clone(companions)
	for _, f := range append(formats, mistral) {
		names = append(names, f.Single)
		if f.Index != "" {
			names = append(names, f.Index)
		}
	}
	client := o.Client
	if client == nil {
		client = remote.NewClient()
	}
	d, file, err := client.Open(path, NamesFile, names)
	if err != nil {
		return nil, problem.In(remote.Name(path), problem.Of("", err)...)
	}
	l := &location{dir: d}
	if file == "" {
		l, err = l.search(d.Path(""))
	} else {
		l, err = locateFile(d.Path(file), d, file)
	}
	if l != nil {
		l.path = d.Path(file)
	}
	return l, err
}

// offline returns the snapshot of a model, ORG/NAME[@REVISION], in the hub's cache on the disk.
func offline(path, model string) (string, error) {
	name, revision, named := strings.Cut(model, "@")
	cache, err := downloaded(name)
	if err != nil || !isCache(cache) {
		return "", problem.New(path, "HF_HUB_OFFLINE is set, and the hub's cache on the disk does not have the model",
			"unset HF_HUB_OFFLINE, or download the model")
	}
	if !named {
		return Snapshot(cache)
	}
	if commit, err := os.ReadFile(filepath.Join(cache, hubRefs, filepath.FromSlash(revision))); err == nil {
		revision = strings.TrimSpace(string(commit))
	}
	dir := filepath.Join(cache, source.HubSnapshots, revision)
	if _, err := os.Stat(dir); err != nil || !filepath.IsLocal(revision) {
		return "", problem.New(path, "HF_HUB_OFFLINE is set, and the hub's cache on the disk does not have this revision",
			"unset HF_HUB_OFFLINE, or download the revision")
	}
	return dir, nil
}

// locate resolves the path, or the model's name in the hub, that the user gave.
func (o Opener) locate(path string) (*location, error) {
	if IsRemote(path) {
		return o.locateRemote(path)
	}
	l, err := locateOnDisk(path)
	if l != nil {
		l.path = path
	}
	return l, err
}
