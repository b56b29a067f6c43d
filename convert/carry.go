package convert

// The files of a checkpoint that hold no weights: which go along.

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/safetensors"
)

// manifestName is the file that binds sources to outputs.
const manifestName = "dsmoe.manifest.json"

// configText returns config.json as it is written.
func (c *Checkpoint) configText() ([]byte, error) {
	f, _, err := safetensors.OpenRegular(filepath.Join(c.dir, configName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 16<<20+1))
}

// carry finds the files that go along: those in the checkpoint's directory itself
// that are neither hidden, nor weights of any format, nor an index or manifest of
// weights. Nothing goes along with a single weight file.
func (p *planner) carry() error {
	c := p.view.c
	if stat, err := os.Stat(c.Path); err != nil || !stat.IsDir() {
		return err
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if p.isReplaced(name) {
			continue
		}
		stat, err := os.Stat(filepath.Join(c.dir, name))
		if err != nil || !stat.Mode().IsRegular() || strings.HasPrefix(name, ".") || isWeights(name) {
			p.plan.Left = append(p.plan.Left, name)
			continue
		}
		hash, size, err := hashFile(filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		p.plan.Others = append(p.plan.Others, OtherFile{Name: name, Size: size, SHA256: hash, Carried: true})
	}
	return nil
}

// isReplaced says whether a file is read, and the output has its own.
func (p *planner) isReplaced(name string) bool {
	return name == configName || name == manifestName || isIndexName(name) ||
		slices.ContainsFunc(p.view.c.Inventory.Files, func(f FileInfo) bool { return f.Name == name })
}

// isWeights knows weight files of any format by their names.
func isWeights(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || foreignKind(name) != ""
}

func hashFile(path string) (hash string, size int64, err error) {
	f, _, err := safetensors.OpenRegular(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
