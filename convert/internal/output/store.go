package output

// An output in an object store. Weight files are assembled by multipart uploads below a hidden prefix, completed when
// all tensors are written, read again there for the proof, and copied by the store to their names: the manifest,
// config.json and the index last. The journal is a sequence of numbered objects. A number is written only once:
// of two runs, one fails to write the next.

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text"
)

// storeOutput is an output in an object store.
type storeOutput struct {
	*storeObjects
	Options
	head      progress.Head
	pending   map[int]progress.Record // progress of tensors whose bytes are not all sent
	uploads   []*weightFile           // as plan.Files; nil for files that are complete
	data      []format.Data           // of complete files
	replaces  bool                    // the target holds an older output, to be replaced
	unchanged func() error            // refuses to replace files that changed since they were written
}

// weightFile is a weight file on its way.
type weightFile struct {
	*remote.Assembly
	header func() error // writes the bytes before the tensors, once
}

// Unfinished reports whether a journal is in force, and whether it is of a complete output.
func (o *storeOutput) Unfinished() (unfinished, filling bool) {
	if o.refresh() != nil {
		return false, false
	}
	head, _, err := o.readLines(func(progress.Record) {})
	return err == nil && head != nil, err == nil && o.published != nil
}

// Begin claims the next number of the journal.
func (o *storeOutput) Begin(apply func(progress.Record), unchanged func() error) (Stage, error) {
	o.unchanged = unchanged
	if err := o.refresh(); err != nil {
		return Fresh, err
	}
	sent := make([]bool, len(o.plan.Tensors))
	old, ready, err := o.readLines(func(r progress.Record) {
		apply(r)
		if r.Tensor >= 0 && r.Tensor < len(sent) {
			sent[r.Tensor] = r.Done == o.plan.Tensors[r.Tensor].Bytes()
		}
	})
	if err == nil {
		o.StartOver = o.StartOver || startsOver(old, &o.head)
		err = o.refuse(old)
	}
	if err != nil {
		return Fresh, err
	}
	claim := progress.Record{Tensor: -1, Run: rand.Text()}
	if old == nil || o.StartOver || !ready {
		return Fresh, o.beginAnew(claim)
	}
	if err := o.appendLines(claim); err != nil {
		return Fresh, err
	}
	if err := o.refresh(); err != nil {
		return Fresh, err
	}
	if o.published != nil {
		return Ended, o.publish()
	}
	return Resumed, o.takeUp(sent, apply)
}

// refuse refuses a target that must not be written to; old is the head of the journal in force, nil without one.
func (o *storeOutput) refuse(old *progress.Head) error {
	if err := o.checkInTheWay(append(slices.Clone(o.published), o.older...)); err != nil {
		return err
	}
	switch {
	case len(o.lines) == 0 && len(o.partials) > 0:
		return fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it",
			text.Quote(o.store.Path(o.partial)))
	case old != nil && !o.StartOver && (old.Plan != o.head.Plan || old.Key != o.head.Key):
		return refuseUnfinished(old, &o.head, o.Path, o.store.Path(o.partial))
	case o.replaces:
		return o.unchanged()
	}
	return nil
}

// beginAnew removes what an earlier run left, and begins.
func (o *storeOutput) beginAnew(claim progress.Record) error {
	mine := o.number
	if err := o.appendLines(o.head, claim); err != nil {
		return err
	}
	for _, name := range append(o.published, o.older...) { // of a run that is to be started over
		if err := o.store.Delete(name); err != nil {
			return err
		}
	}
	o.published, o.older = nil, nil
	if err := o.removeUnfinished(); err != nil {
		return err
	}
	if err := o.removeLines(func(n int) bool { return n < mine }); err != nil {
		return err
	}
	for i := range o.plan.Files {
		if err := o.assembleFile(i, ""); err != nil {
			return err
		}
	}
	return o.appendLines(progress.Record{Tensor: -1, Ready: true})
}

// assembleFile has a file be written by the unfinished upload of this id, or by a new one.
func (o *storeOutput) assembleFile(file int, id string) error {
	if o.uploads == nil {
		o.uploads = make([]*weightFile, len(o.plan.Files))
	}
	f := o.plan.Files[file]
	u, err := o.store.Upload(o.partial+f.Name, f.Size, o.client.PartSize(f.Size), id)
	if err != nil {
		return err
	}
	header, err := o.plan.Header(file)
	if err != nil {
		return err
	}
	a := remote.Assemble(u, func(yield func(begin, end int64) bool) { // the spans that are written
		if !yield(0, int64(len(header))) {
			return
		}
		for i := range o.plan.Tensors {
			if t := &o.plan.Tensors[i]; t.File == file && !yield(t.Offset, t.Offset+t.Bytes()) {
				return
			}
		}
	})
	o.uploads[file] = &weightFile{a, sync.OnceValue(func() error {
		header, err := o.plan.Header(file)
		if err != nil {
			return err
		}
		return a.WriteAt(header, 0)
	})}
	return nil
}

// takeUp goes on with the files that the journal's run left. Tensors that were sent count only while the store has
// their bytes: it may have removed an unfinished upload. A complete file without a tensor that was sent is made anew.
func (o *storeOutput) takeUp(sent []bool, apply func(progress.Record)) error {
	whole := make([]bool, len(o.plan.Files))
	for i, f := range o.plan.Files {
		x, ok := o.partials[f.Name]
		whole[i] = ok && x.Size == f.Size && (o.etags == nil || x.Identity == o.etags[i])
	}
	for i := range sent {
		t := &o.plan.Tensors[i]
		whole[t.File] = whole[t.File] && (sent[i] || t.Bytes() == 0)
	}
	ids, err := o.store.Uploads(o.partial)
	if err != nil {
		return err
	}
	o.uploads = make([]*weightFile, len(o.plan.Files))
	for i, f := range o.plan.Files {
		if whole[i] {
			continue
		}
		if x, ok := o.partials[f.Name]; ok {
			if err := o.store.Delete(x.Name); err != nil {
				return err
			}
		}
		if err := o.assembleFile(i, cmp.Or(ids[o.partial+f.Name]...)); err != nil {
			return err
		}
	}
	for i := range sent {
		if !o.hasTensor(i) {
			apply(progress.Record{Tensor: i})
		}
	}
	return nil
}

// hasTensor reports whether the store has the bytes of a tensor.
func (o *storeOutput) hasTensor(i int) bool {
	t := &o.plan.Tensors[i]
	u := o.uploads[t.File]
	return u == nil || u.HasBytes(t.Offset, t.Offset+t.Bytes())
}

// checkInTheWay refuses a target that holds other files than those named own, unless it is an older output to be
// replaced.
func (o *storeOutput) checkInTheWay(own []string) error {
	_, finished := o.objects[o.ManifestName()]
	if o.replaces = o.Overwrite && len(own) == 0 && finished; o.replaces {
		return o.CheckReplaceable()
	}
	names := slices.Sorted(maps.Keys(o.objects))
	i := slices.IndexFunc(names, func(name string) bool { return !slices.Contains(own, name) })
	switch {
	case i < 0:
		return nil
	case !o.Overwrite && len(own) == 0 && o.CheckReplaceable() == nil:
		return o.AnotherOutput("--overwrite replaces it")
	case o.Overwrite:
		return o.CheckReplaceable()
	case o.IsFile():
		return fmt.Errorf("%s exists already", text.Quote(names[i]))
	}
	return fmt.Errorf("the place is not empty: it holds %s", text.Quote(names[i]))
}

// CheckReplaceable demands a readable manifest that lists all objects.
func (o *storeOutput) CheckReplaceable() error {
	m, err := o.ReadManifest(nil)
	if err != nil {
		return fmt.Errorf("cannot be overwritten, as it is not a finished output: %w", err)
	}
	listed := append(m.FileNames(), o.ManifestName())
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		if !slices.Contains(listed, name) {
			return fmt.Errorf("cannot be overwritten: it holds %s, which its manifest does not list", text.Quote(name))
		}
	}
	return nil
}

// WriteTile writes bytes of a tensor, after the header of its file.
func (o *storeOutput) WriteTile(file int, tile []byte, at int64) error {
	if err := o.uploads[file].header(); err != nil {
		return err
	}
	return o.uploads[file].WriteAt(tile, at)
}

// ReadTile reads a run of bytes of a complete file.
func (o *storeOutput) ReadTile(file int, tile []byte, at int64) error {
	n, err := o.data[file].ReadAt(tile, at)
	if n == len(tile) {
		return nil
	}
	return err
}

// Start reports that nothing is readable yet: nobody can read the parts of an unfinished upload.
func (o *storeOutput) Start() (readable bool, err error) { return false, nil }

// CompleteFiles completes all files, after all tensors were written and recorded, and opens them to be read.
func (o *storeOutput) CompleteFiles() error {
	if o.data != nil {
		return nil
	}
	var g errgroup.Group
	g.SetLimit(requests)
	for i, u := range o.uploads {
		if u == nil {
			continue
		}
		o.uploads[i] = nil
		g.Go(func() error { return errors.Join(u.header(), u.Finish()) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := o.refresh(); err != nil {
		return err
	}
	o.etags = make([]string, len(o.plan.Files))
	for i, f := range o.plan.Files {
		x := o.partials[f.Name]
		if o.etags[i] = x.Identity; x.Size != f.Size {
			return fmt.Errorf("%s: has %s, not %s: the store did not keep what was sent", text.Quote(o.PathOf(i)),
				text.ExactBytes(x.Size), text.ExactBytes(f.Size))
		}
	}
	if err := o.appendLines(progress.Record{Tensor: -1, ETags: o.etags}); err != nil {
		return err
	}
	dir, err := o.store.Dir(o.partial, func(string) bool { return true })
	if err != nil {
		return err
	}
	return o.openData(dir, o.partial)
}

// openData opens the weight files to be read.
func (o *storeOutput) openData(dir source.Dir, prefix string) error {
	for _, f := range o.plan.Files {
		data, err := dir.Data(prefix + f.Name)
		if err != nil {
			return err
		}
		if d, ok := data.(interface{ Rest() }); ok {
			d.Rest() // its header is not read
		}
		o.data = append(o.data, data)
	}
	return nil
}

// OpenFinished opens the weight files in the target.
func (o *storeOutput) OpenFinished() error {
	dir, err := o.Files()
	if err != nil {
		return err
	}
	return o.openData(dir, "")
}

// Close closes the files that are read.
func (o *storeOutput) Close() {
	for _, d := range o.data {
		d.Close()
	}
	o.data = nil
}

// Record writes the progress of tensors whose parts are all sent into the journal. What is known of the others waits.
func (o *storeOutput) Record(n progress.Unrecorded) error {
	for _, r := range n.Lines {
		t := &o.plan.Tensors[r.Tensor]
		if r.Done == t.Bytes() || o.uploads == nil || o.uploads[t.File] == nil {
			o.pending[r.Tensor] = r
		}
	}
	var lines []any
	for _, i := range slices.Sorted(maps.Keys(o.pending)) {
		if o.hasTensor(i) {
			lines = append(lines, o.pending[i])
			delete(o.pending, i)
		}
	}
	if lines == nil {
		return nil
	}
	return o.appendLines(lines...)
}

// Leftovers returns the place of unfinished files.
func (o *storeOutput) Leftovers() (dir string, bytes int64) {
	for i, f := range o.plan.Files {
		if o.uploads == nil || o.uploads[i] == nil {
			bytes += f.Size
		} else {
			bytes += o.uploads[i].Sent()
		}
	}
	if o.number <= 1 {
		return "", 0
	}
	return o.store.Path(o.partial), bytes
}

// Commit writes the files without weights beside the others.
func (o *storeOutput) Commit(content func(name string) func(io.Writer) error) (replaced bool, err error) {
	for _, name := range o.plan.FinishOrder() {
		if write := content(name); write != nil {
			if err := o.store.Write(o.partial+name, write); err != nil {
				return false, err
			}
		}
	}
	if err := o.refresh(); err != nil {
		return false, err
	}
	if err := o.checkInTheWay(nil); err != nil {
		return false, err
	}
	if o.replaces {
		if err := o.unchanged(); err != nil {
			return false, err
		}
	}
	for i, f := range o.plan.Files {
		if o.partials[f.Name].Identity != o.etags[i] {
			return false, fmt.Errorf("%s: was replaced since it was completed", text.Quote(o.PathOf(i)))
		}
	}
	o.published = o.plan.FinishOrder()
	if o.replaces {
		o.older = slices.Sorted(maps.Keys(o.objects))
	}
	if err := o.appendLines(progress.Record{Tensor: -1, Published: o.published, Older: o.older}); err != nil {
		return false, err
	}
	return o.replaces, o.publish()
}

// ReplaceManifest writes the manifest object anew.
func (o *storeOutput) ReplaceManifest(write func(io.Writer) error) error {
	return o.store.Write(o.ManifestName(), write)
}

// RemoveOrphan removes what a run left that died after the output got its name.
func (o *storeOutput) RemoveOrphan() error {
	if err := o.refresh(); err != nil || len(o.lines) == 0 {
		return err
	}
	head, _, err := o.readLines(func(progress.Record) {})
	if err != nil || head != nil {
		return err // of another run, which may be at work
	}
	return o.removeTraces()
}
