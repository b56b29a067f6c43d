package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/pack"
)

// checkpointFiles says which checkpoint was verified, and whether its files are the
// ones that the pack was made from. A converted checkpoint's are not.
type checkpointFiles struct {
	Path   string            `json:"path"`         // as it was given
	Golden string            `json:"golden"`       // path of the pack, as it was given
	Files  map[string]string `json:"files"`        // "same", "differs", "not hashed" or "not there", by name
	Hashes map[string]string `json:"hashes"`       // "sha256:…" of those files that were hashed
	Mapped int64             `json:"mapped_bytes"` // of the weights that were read
	// Identity has the hash of the header, and the size, of each weight file, "" if it was not opened, and Samples a
	// hash of 16 KiB of it if it is on the disk: reports of one checkpoint have the same
	Identity map[string]string `json:"identity"`
	Samples  map[string]string `json:"samples"` // see Identity
}

// compare hashes config.json, and the weights if asked to, for every file that the
// pack lists.
func (f *checkpointFiles) compare(c *checkpoint.Checkpoint, p *pack.Pack, hashWeights bool) error {
	f.Files, f.Hashes = map[string]string{}, map[string]string{}
	held := map[string]bool{c.ConfigFile(): true} // and whether it is hashed
	if c.ConfigInside() {
		clear(held)
	}
	for _, file := range c.Inventory.Files {
		held[file.Name] = hashWeights
	}
	for _, file := range c.Inventory.Unread {
		if !c.Source.OnDisk() { // it is there, and was not needed
			held[file.Name] = false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if !held[name] {
			continue
		}
		hash, err := hashFile(c, name)
		if err != nil {
			return err
		}
		f.Hashes[name] = hash
	}
	for name, want := range p.Manifest.Checkpoint {
		got, hashed := f.Hashes[name]
		_, there := held[name]
		switch {
		case !there:
			f.Files[name] = "not there"
		case !hashed:
			f.Files[name] = "not hashed"
		case got == want:
			f.Files[name] = "same"
		default:
			f.Files[name] = "differs"
		}
	}
	return nil
}

// others returns the weight files whose hashes differ from the pack's, with the parts of the model that they hold. same:
// all files of the pack's checkpoint are here with its hashes.
func (f *checkpointFiles) others(c *checkpoint.Checkpoint) (others []string, same bool) {
	holds := map[string][]string{}
	for t := range c.Tensors() {
		if file, _, err := c.Place(t.Name); err == nil {
			name := c.Inventory.Files[file].Name
			holds[name] = append(holds[name], t.Name)
		}
	}
	same = len(f.Files) > 0
	for _, name := range slices.Sorted(maps.Keys(f.Files)) {
		same = same && (f.Files[name] == "same" || checkpoint.IsConfig(name))
		if f.Files[name] == "differs" && !checkpoint.IsConfig(name) {
			others = append(others, fmt.Sprintf("%s (%s)", text.Quote(name), weights.PartsOf(holds[name])))
		}
	}
	return others, same
}

// String says in a few words what compare found.
func (f *checkpointFiles) String() string {
	count := map[string]int{}
	var parts []string
	for name, state := range f.Files {
		if checkpoint.IsConfig(name) {
			parts = append(parts, name+" "+map[string]string{"same": "as in the pack",
				"differs": "with another hash than in the pack", "not there": "is absent (the weight file holds the config)"}[state])
		} else {
			count[state]++
		}
	}
	slices.Sort(parts)
	for _, state := range slices.Sorted(maps.Keys(count)) {
		if state != "not hashed" {
			parts = append(parts, fmt.Sprintf("%s %s", text.Plural(count[state], "weight file"), map[string]string{
				"same": "as in the pack", "differs": "with another hash than in the pack", "not there": "of the pack without a file of that name here"}[state]))
		}
	}
	return strings.Join(parts, ", ")
}

// join adds what g knows of the same checkpoint's files, and returns how it differs.
func (f *checkpointFiles) join(g *checkpointFiles) (different []string) {
	if a, b := slices.Sorted(maps.Keys(f.Identity)), slices.Sorted(maps.Keys(g.Identity)); !slices.Equal(a, b) {
		different = append(different, fmt.Sprintf("the checkpoint has the files %s, not %s", text.Some(b, 3, ", "),
			text.Some(a, 3, ", ")))
	}
	for _, known := range []struct {
		what      string
		ours, its map[string]string
	}{{"hash", f.Hashes, g.Hashes}, {"identity", f.Identity, g.Identity}, {"samples", f.Samples, g.Samples}} {
		for _, name := range slices.Sorted(maps.Keys(known.its)) {
			was, is := known.ours[name], known.its[name]
			if was != "" && is != "" && was != is {
				different = append(different, fmt.Sprintf("the checkpoint's %s has the %s %s, not %s", text.Quote(name),
					known.what, is, was))
			}
			known.ours[name] = cmp.Or(is, was)
		}
	}
	for name, state := range g.Files {
		if f.Files[name] == "not hashed" || f.Files[name] == "not there" {
			f.Files[name] = state
		}
	}
	f.Mapped = max(f.Mapped, g.Mapped)
	return different
}

// identify names the weight files that were opened by their headers and sizes, and those on the disk by samples of
// their bytes, 4 KiB at each quarter, so that a fine-tuned checkpoint is not taken for its base.
func (f *checkpointFiles) identify(c *checkpoint.Checkpoint) error {
	f.Identity, f.Samples = map[string]string{}, map[string]string{}
	for _, file := range c.Inventory.Unread {
		f.Identity[file.Name] = ""
	}
	for i, file := range c.Inventory.Files {
		header, err := c.Identity(i)
		if err != nil {
			return err
		}
		f.Identity[file.Name] = fmt.Sprintf("%s, %d bytes", header, file.Size)
		h, sample := sha256.New(), make([]byte, min(4096, file.Size))
		for quarter := int64(1); quarter <= 4 && c.Source.OnDisk(); quarter++ {
			if err := c.ReadFile(i, sample, (file.Size-int64(len(sample)))/4*quarter); err != nil {
				return err
			}
			h.Write(sample)
			f.Samples[file.Name] = fmt.Sprintf("sha256:%x", h.Sum(nil))
		}
	}
	return nil
}
