package engine

// Updating a finished output whose weights stay: the files without weights are replaced, and
// the bytes before the weights (GGUF's keys), in place or in a new file with the same data.
// The manifest comes last: after a crash the same update goes on.

import (
	"bufio"
	"cmp"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// update makes dst, the finished output of a plan of the same weights, that of p. Files that are
// neither as the manifest records them nor as p has them stay, and are an error.
func update(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	e, err := newExecution(dst, p, src, s)
	if err != nil {
		return nil, err
	}
	m, err := e.out.readManifest(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot be updated, as it is not a finished output: %w", err)
	}
	if edited := m.edited(); edited != "" {
		return nil, fmt.Errorf("cannot be updated: %s %s", e.out.manifestName(), edited)
	}
	others, err := e.others(ctx, m)
	if err != nil {
		return nil, err
	}
	different := e.differences(m, others)
	switch {
	case !e.updates(m):
		return nil, e.another(m, different)
	case len(different) == 0 && m.Plan == p.Hash:
		r, _, err := finished(ctx, dst, p, src, s)
		return r, err
	}
	if err := e.out.lockFinished(); err != nil {
		return nil, err
	}
	defer e.out.close()
	if now, err := e.out.readManifest(nil); err != nil || now.Hash != m.Hash {
		return nil, errors.Join(errBusy, err)
	}
	u := &updating{execution: e, old: m}
	if err = errors.Join(u.run(ctx, others), e.Disk.Remove(e.out.journalPath)); err != nil {
		return nil, err
	}
	return &Result{Verified: m.Verified, Updated: u.replaced, Outdated: m.State != u.current, Lost: e.lost()}, nil
}

// lockFinished locks a finished output. Its journal stays empty: it is of no unfinished output.
func (o *output) lockFinished() (err error) {
	if o.journal, err = lockJournal(o.disk, o.journalPath); err != nil {
		return err
	}
	if begun(o.journalPath) {
		o.close()
		return checkpoint.Refusal(o.dst, "an unfinished conversion is in "+text.Quote(o.dir), "the command that began it continues it")
	}
	return nil
}

// begun reports whether a journal says anything.
func begun(journal string) bool {
	stat, err := os.Lstat(journal)
	return err == nil && stat.Size() > 0
}

// updates reports whether the output with the manifest m has the plan's weights, in files of
// the same names.
func (e *execution) updates(m *Manifest) bool {
	same := func(a, b plan.File) bool { return a.Name == b.Name }
	return m.Weights == e.plan.Weights && slices.EqualFunc(m.Files, e.plan.Files, same)
}

// another is the error for a finished output of another plan.
func (e *execution) another(m *Manifest, different []checkpoint.Problem) error {
	hint := "--overwrite replaces it"
	switch {
	case e.updates(m):
		hint = "--update replaces the files that differ, and keeps the weights"
	case e.out.checkReplaceable() != nil:
		hint = ""
	}
	const most = 20
	var list []string
	for _, d := range different[:min(len(different), most)] {
		list = append(list, d.String())
	}
	if more := len(different) - most; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	if list == nil {
		list = []string{"written by " + text.Quote(m.Tool) + ", which planned it otherwise"}
	}
	err := e.out.isAnother(hint)
	err.Problems[0].Cause += ": " + strings.Join(list, "; ")
	return err
}

// differences names what distinguishes the plan from that of the output with the manifest m.
func (e *execution) differences(m *Manifest, others []otherFile) []checkpoint.Problem {
	list := append(optionDifferences(m.Options, e.plan.Options), sourceDifferences(m.Sources, e.plan.Sources)...)
	if len(list) == 0 && m.Weights != "" && m.Weights != e.plan.Weights {
		list = append(list, checkpoint.Problem{Cause: "its weights would be written otherwise"})
	}
	list = append(list, otherDifferences(others)...)
	for i, f := range e.plan.Files {
		if e.updates(m) && f.Header != m.Files[i].Header {
			list = append(list, checkpoint.Problem{File: f.Name, Cause: "would have other bytes before its weights"})
		}
	}
	return list
}

// optionDifferences compares the recorded options of two plans.
func optionDifferences(old, now any) (list []checkpoint.Problem) {
	a, b := optionMembers(old), optionMembers(now)
	for _, key := range unionOfKeys(a, b) {
		if a[key] != b[key] {
			list = append(list, checkpoint.Problem{Cause: fmt.Sprintf("option %s: %s, not %s", text.Quote(key),
				cmp.Or(b[key], "absent"), cmp.Or(a[key], "absent"))})
		}
	}
	return list
}

// optionMembers returns the members of a JSON object as text.
func optionMembers(options any) map[string]string {
	var members map[string]any
	document, _ := stdjson.Marshal(options) // plain structs, or what was read as JSON
	stdjson.Unmarshal(document, &members)
	texts := map[string]string{}
	for key, value := range members {
		word, isText := value.(string)
		if !isText {
			b, _ := stdjson.Marshal(value)
			word = string(b)
		}
		texts[key] = text.Quote(word)
	}
	return texts
}

// unionOfKeys returns the keys of two maps, sorted.
func unionOfKeys[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// sourceDifferences compares the weight files of two sources.
func sourceDifferences(old, now []plan.Source) (list []checkpoint.Problem) {
	byName := func(files []plan.Source) map[string]plan.Source {
		names := map[string]plan.Source{}
		for _, f := range files {
			names[f.Name] = f
		}
		return names
	}
	a, b := byName(old), byName(now)
	for _, name := range unionOfKeys(a, b) {
		was, had := a[name]
		is, has := b[name]
		cause := ""
		switch {
		case !had:
			cause = "is new in the source"
		case !has:
			cause = "is no longer in the source"
		case was.Size != is.Size:
			cause = fmt.Sprintf("has %s in the source, not %s", text.ExactBytes(is.Size), text.ExactBytes(was.Size))
		case was.Identity != is.Identity:
			cause = "lists other tensors in the source"
		}
		if cause != "" {
			list = append(list, checkpoint.Problem{File: name, Cause: cause})
		}
	}
	return list
}

// otherFile is a file without weights of the old or the new output.
type otherFile struct {
	name     string
	old, now string // hashes; empty for a file that the output lacks
	carried  bool
}

// difference says how the file differs between the outputs; empty if it does not.
func (o *otherFile) difference() string {
	switch {
	case o.old == o.now:
		return ""
	case !o.carried:
		return "would have other content"
	case o.old == "":
		return "is new in the source"
	case o.now == "":
		return "is no longer in the source"
	}
	return "is " + o.now + " now, not " + o.old
}

// otherDifferences lists the files without weights that differ.
func otherDifferences(others []otherFile) (list []checkpoint.Problem) {
	for _, o := range others {
		if cause := o.difference(); cause != "" {
			list = append(list, checkpoint.Problem{File: o.name, Cause: cause})
		}
	}
	return list
}

// others lists the files without weights of the output with the manifest m and of the plan. It
// hashes the source's, for the manifest too.
func (e *execution) others(ctx context.Context, m *Manifest) ([]otherFile, error) {
	files := map[string]otherFile{}
	for _, f := range m.Others {
		files[f.Name] = otherFile{name: f.Name, old: f.Hash, carried: f.Carried}
	}
	e.startCarried("comparing other files")
	for _, f := range e.plan.Others {
		hash := f.Hash
		if f.Carried {
			var err error
			if hash, err = e.copyCarried(ctx, io.Discard, f); err != nil {
				return nil, err
			}
			e.carried[f.Name] = hash
		}
		files[f.Name] = otherFile{f.Name, files[f.Name].old, hash, f.Carried}
	}
	var list []otherFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, files[name])
	}
	return list, nil
}

// updating is the update of a finished output.
type updating struct {
	*execution
	old      *Manifest
	current  string               // state of the source: Source.Key
	others   []otherFile          // to be replaced or removed
	heads    []int                // weight files, as plan.Files, with bytes before the weights to be replaced
	blocked  []checkpoint.Problem // files that are neither the old nor the new output's
	replaced []string             // names of files
}

// run examines all files before it replaces the first.
func (u *updating) run(ctx context.Context, others []otherFile) error {
	if err := u.examine(ctx, others); err != nil {
		return err
	}
	if err := u.adopt(); err != nil {
		return err
	}
	for _, o := range u.others {
		if err := u.replaceOther(ctx, o); err != nil {
			return err
		}
	}
	for _, i := range u.heads {
		if err := u.replaceHead(ctx, i); err != nil {
			return err
		}
	}
	if err := u.Disk.ReplaceFile(u.out.manifest, u.writeManifest); err != nil {
		return err
	}
	u.replaced = append(u.replaced, u.out.manifestName())
	for _, name := range u.plan.FinishOrder() { // what a crash left
		if partial := hidden(u.path(name), "partial"); exists(partial) {
			if err := u.Disk.Remove(partial); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *updating) path(name string) string { return filepath.Join(u.out.home, name) }

// examine lists the files to be replaced. A file that is neither the old nor the new output's is an error.
func (u *updating) examine(ctx context.Context, others []otherFile) error {
	for _, o := range others {
		hash, _, err := hashOf(ctx, u.path(o.name), 1<<62)
		switch {
		case err != nil:
			return err
		case o.difference() == "" || hash == o.now:
			continue
		case hash != "" && hash != o.old:
			u.block(o.name, hash, o.old)
		}
		u.others = append(u.others, o)
	}
	need := int64(0)
	for i, f := range u.plan.Files {
		if f.Header == u.old.Files[i].Header {
			continue
		}
		if err := u.examineHead(ctx, i); err != nil {
			return err
		}
		if f.Size != u.old.Files[i].Size {
			need = max(need, f.Size)
		}
	}
	if u.blocked != nil {
		err := checkpoint.Refusal(u.out.dst, "cannot be updated: its files changed since they were written",
			"move the changed files away; --overwrite=changed makes everything anew")
		err.Problems = append(err.Problems, u.blocked...)
		return err
	}
	return checkFree(u.out.home, need)
}

func (u *updating) block(name, found, recorded string) {
	u.blocked = append(u.blocked, checkpoint.Problem{File: name, Cause: "changed: " + found + ", not " + cmp.Or(recorded, "absent")})
}

// examineHead examines the bytes before the weights of a weight file, an index in plan.Files.
func (u *updating) examineHead(ctx context.Context, i int) error {
	now, was, path := u.plan.Files[i], u.old.Files[i], u.path(u.plan.Files[i].Name)
	if !exists(path) && now.Size == was.Size {
		path = aside(path) // a crash interrupted the update of the file
		if stat, err := os.Lstat(path); err == nil && stat.Mode().IsRegular() && stat.Size() == now.Size {
			u.heads = append(u.heads, i)
			return nil
		}
	}
	hash, size, err := hashOf(ctx, path, u.plan.DataStart(now.Name))
	if err != nil || hash == now.Header && size == now.Size {
		return err
	}
	if hash, size, err = hashOf(ctx, path, u.oldStart(i)); err != nil {
		return err
	}
	if hash != was.Header || size != was.Size {
		u.block(now.Name, cmp.Or(hash, "missing"), was.Header)
	}
	u.heads = append(u.heads, i)
	return nil
}

// oldStart returns the number of bytes before the weights of a file of the old output, an
// index in plan.Files: all that differs between its size and the new one.
func (u *updating) oldStart(i int) int64 {
	f := u.plan.Files[i]
	return u.plan.DataStart(f.Name) + u.old.Files[i].Size - f.Size
}

// hashOf hashes the first n bytes of a file and returns its size. The hash of a missing file is empty.
func hashOf(ctx context.Context, path string, n int64) (hash string, size int64, err error) {
	stat, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", 0, nil
	case err != nil:
		return "", 0, err
	case !stat.Mode().IsRegular():
		return "not a regular file", 0, nil
	}
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	hash, _, err = digest.Copy(ctx, io.Discard, io.LimitReader(f, n), func(int64) {})
	return hash, size, err
}

// adopt takes over what the old manifest records of the weights.
func (u *updating) adopt() error {
	n, other := 0, errors.New(u.out.manifestName()+" lists other tensors")
	_, err := u.out.readManifest(func(t *ManifestTensor) error {
		if n == len(u.states) || u.plan.Tensors[n].Name != t.Name || len(u.plan.Tensors[n].Segments) != len(t.Sources) {
			return other
		}
		s := tensorState{proof: &proof{Hash: t.Hash}}
		if t.Lost != nil {
			s.lost = *t.Lost
		}
		for _, source := range t.Sources {
			if source.Hash != "" { // of all of them or none
				s.proof.Segments = append(s.proof.Segments, source.Hash)
			}
		}
		if len(s.proof.Segments) != len(t.Sources) {
			s.proof.Segments = nil
		}
		u.states[n] = s
		n++
		return nil
	})
	if err == nil && n != len(u.states) {
		err = other
	}
	// The weights stay, and so does what is known of them.
	u.current, u.key, u.Unverified = u.key, u.old.State, !u.old.Verified
	if u.old.Format == uncountedFormat {
		u.manifest = uncountedFormat
	}
	return err
}

// replaceOther replaces or removes a file without weights.
func (u *updating) replaceOther(ctx context.Context, o otherFile) error {
	u.replaced = append(u.replaced, o.name)
	i := slices.IndexFunc(u.plan.Others, func(f plan.Other) bool { return f.Name == o.name })
	if i >= 0 {
		return u.Disk.ReplaceFile(u.path(o.name), func(w io.Writer) error { return u.writeOther(ctx, w, u.plan.Others[i]) })
	}
	if err := u.Disk.Remove(u.path(o.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.Disk.SyncDir(u.out.home)
}

// replaceHead replaces the bytes before the weights of a file: in place if the weights stay where
// they are.
func (u *updating) replaceHead(ctx context.Context, i int) error {
	f := u.plan.Files[i]
	u.replaced = append(u.replaced, f.Name)
	header, err := u.plan.Header(i)
	if err != nil {
		return err
	}
	if f.Size == u.old.Files[i].Size {
		return u.overwriteHead(u.path(f.Name), header)
	}
	u.startPhase("moving weights", f.Size-u.plan.DataStart(f.Name))
	return u.moveWeights(ctx, i, header)
}

// aside is the name of a weight file while the bytes before its weights are overwritten.
func aside(path string) string { return hidden(path, "header") }

// overwriteHead overwrites the first bytes of a file, which has another name meanwhile: no file
// with the final name has a part of them.
func (u *updating) overwriteHead(path string, header []byte) error {
	if exists(path) {
		if err := u.Disk.Rename(path, aside(path)); err != nil {
			return err
		}
		if err := u.Disk.SyncDir(u.out.home); err != nil {
			return err
		}
	}
	f, err := u.Disk.Open(aside(path))
	if err != nil {
		return err
	}
	_, err = f.WriteAt(header, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Finish()); err != nil {
		return err
	}
	if err := u.Disk.Rename(aside(path), path); err != nil {
		return err
	}
	return u.Disk.SyncDir(u.out.home)
}

// moveWeights writes a new file with other bytes before the same weights, and demands that these
// have the hashes of the manifest.
func (u *updating) moveWeights(ctx context.Context, i int, header []byte) error {
	f := u.plan.Files[i]
	old, _, err := format.OpenRegular(u.path(f.Name))
	if err != nil {
		return err
	}
	defer old.Close()
	shift := f.Size - u.old.Files[i].Size
	return u.Disk.ReplaceFile(u.path(f.Name), func(w io.Writer) error {
		b := bufio.NewWriterSize(w, writeSize)
		b.Write(header)
		at := int64(len(header))
		for j := range u.plan.Tensors {
			t := &u.plan.Tensors[j]
			if t.File != i {
				continue
			}
			b.Write(make([]byte, t.Offset-at)) // padding
			hash, n, err := digest.Copy(ctx, b, io.NewSectionReader(old, t.Offset-shift, t.Bytes()), u.advance)
			if err != nil {
				return err
			}
			if hash != u.states[j].proof.Hash {
				return fmt.Errorf("%s: tensor %s changed since it was written", text.Quote(f.Name), text.Quote(t.Name))
			}
			at = t.Offset + n
		}
		b.Write(make([]byte, f.Size-at))
		return b.Flush()
	})
}
