package engine

// An output in an object store. Weight files are assembled by multipart uploads below a hidden prefix, completed when
// all tensors are written, read again there for the proof, and copied by the store to their names: the manifest,
// config.json and the index last. The journal is a sequence of numbered objects that are written only if there is none
// of that name: of two runs, one fails to write the next number.

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text"
)

// storeOutput is an output in an object store.
type storeOutput struct {
	target
	store     *remote.Store
	plan      *plan.Plan
	head      progress.Head
	startOver bool   // Settings.StartOver
	overwrite bool   // Settings.Overwrite
	partial   string // what the names of unfinished files begin with
	journal   string // what the names of the journal's objects begin with

	listing
	number    int                     // of the journal's next object
	pending   map[int]progress.Record // progress of tensors whose bytes are not all sent
	uploads   []*weightFile           // as plan.Files; nil for files that are complete
	data      []format.Data           // of complete files
	etags     []string                // of complete files, since they were completed; nil before
	published []string                // files on their way to the target; nil before publishing starts
	older     []string                // files of the older output that is replaced
	replaces  bool                    // the target holds an older output, to be replaced
	unchanged func() error            // refuses to replace files that changed since they were written
}

// weightFile is a weight file on its way.
type weightFile struct {
	*remote.Assembly
	header func() error // writes the bytes before the tensors, once
}

// listing is the objects of a target.
type listing struct {
	objects  map[string]remote.Object // in the target
	partials map[string]remote.Object // unfinished files, by the names that they will have
	lines    []remote.Object          // the journal, in its order
}

// openStore opens the store that the output of a plan at a URL appears in.
func openStore(dst string, p *plan.Plan) (*remote.Store, error) {
	if p.File != "" {
		dst = strings.TrimSuffix(dst, "/"+path.Base(dst))
	}
	return remote.OpenStore(dst)
}

// storeTarget is the target of a plan in a store.
func storeTarget(dst string, p *plan.Plan, store *remote.Store) target {
	t := target{dst: dst, home: dst, manifest: store.Path(plan.ManifestName)}
	t.files = func() (source.Dir, error) {
		return store.Dir("", func(name string) bool { return !strings.HasPrefix(name, hiddenPrefix) })
	}
	if p.File != "" {
		t.home, t.manifest = store.Path(""), dst+plan.FileManifest
		t.files = func() (source.Dir, error) {
			return store.Dir(p.File, func(name string) bool { return name == p.File || name == p.Manifest() })
		}
	}
	return t
}

// hiddenPrefix begins the names of a directory's unfinished files and its journal.
const hiddenPrefix = ".dsmoe."

func newStoreOutput(dst string, p *plan.Plan, key string, s Settings) *storeOutput {
	o := &storeOutput{target: storeTarget(dst, p, s.store), store: s.store, plan: p,
		head:      progress.Head{Format: progress.Format, Plan: p.Hash, Key: key},
		startOver: s.StartOver, overwrite: s.Overwrite, pending: map[int]progress.Record{}}
	o.partial, o.journal = hiddenPrefix+"partial/", hiddenPrefix+"journal/"
	if o.isFile() {
		o.partial, o.journal = hidden(p.File, "partial")+"/", hidden(p.File, "journal")+"/"
	}
	return o
}

// largestPart is the size in bytes of the largest part of an upload of the plan's files.
func largestPart(p *plan.Plan) (n int64) {
	for _, f := range p.Files {
		n = max(n, remote.PartSize(f.Size))
	}
	return n
}

// refresh lists the objects.
func (o *storeOutput) refresh() error {
	o.listing = listing{objects: map[string]remote.Object{}, partials: map[string]remote.Object{}}
	prefixes := []string{""}
	if o.isFile() {
		prefixes = []string{o.plan.File, hidden(o.plan.File, "")}
	}
	for _, prefix := range prefixes {
		objects, err := o.store.List(prefix)
		if err != nil {
			return err
		}
		for _, x := range objects {
			if name, ok := strings.CutPrefix(x.Name, o.partial); ok {
				o.partials[name] = x
			} else if strings.HasPrefix(x.Name, o.journal) {
				o.lines = append(o.lines, x)
			} else if !o.isFile() || x.Name == o.plan.File || x.Name == o.manifestName() {
				o.objects[x.Name] = x
			}
		}
	}
	return nil
}

// readLines hands the records of the journal to apply and returns its head, nil if no journal is in force.
func (o *storeOutput) readLines(apply func(progress.Record)) (head *progress.Head, ready bool, err error) {
	o.number, o.published, o.older, o.etags = 1, nil, nil, nil
	for _, x := range o.lines {
		if _, err := fmt.Sscanf(x.Name, o.journal+"%d", &o.number); err != nil {
			return nil, false, fmt.Errorf("%s is not a journal of an unfinished conversion: remove it",
				text.Quote(o.store.Path(x.Name)))
		}
		o.number++
		data, err := o.store.Get(x.Name)
		if err != nil {
			return nil, false, err
		}
		for line := range bytes.Lines(data) {
			var first progress.Head
			if progress.Unseal(line, &first) && first.Format == progress.Format {
				head, ready, o.etags = &first, false, nil
				continue
			}
			var r progress.Record
			if !progress.Unseal(line, &r) || head == nil {
				continue
			}
			if r.Void {
				head, o.published = nil, nil
			}
			ready = ready || r.Ready
			if len(r.ETags) == len(o.plan.Files) {
				o.etags = r.ETags
			}
			if r.Published != nil {
				o.published, o.older = r.Published, r.Older
			}
			apply(r)
		}
	}
	return head, ready, nil
}

// appendLines writes the journal's next object.
func (o *storeOutput) appendLines(lines ...any) error {
	data, err := progress.Seal(lines...)
	if err != nil {
		return err
	}
	err = o.store.PutNew(fmt.Sprintf("%s%06d", o.journal, o.number), data)
	if errors.Is(err, fs.ErrExist) {
		return progress.ErrBusy
	}
	o.number++
	return err
}

// unfinished reports whether a journal is in force, and whether it is of a complete output.
func (o *storeOutput) unfinished() (begun, filling bool) {
	if o.refresh() != nil {
		return false, false
	}
	head, _, err := o.readLines(func(progress.Record) {})
	return err == nil && head != nil, err == nil && o.published != nil
}

// begin claims the next number of the journal.
func (o *storeOutput) begin(apply func(progress.Record), unchanged func() error) (resumed bool, err error) {
	o.unchanged = unchanged
	if err := o.refresh(); err != nil {
		return false, err
	}
	sent := make([]bool, len(o.plan.Tensors))
	old, ready, err := o.readLines(func(r progress.Record) {
		apply(r)
		if r.Tensor >= 0 && r.Tensor < len(sent) {
			sent[r.Tensor] = r.Done == o.plan.Tensors[r.Tensor].Bytes()
		}
	})
	if err == nil {
		err = o.refuse(old)
	}
	if err != nil {
		return false, err
	}
	claim := progress.Record{Tensor: -1, Run: rand.Text()}
	if old == nil || o.startOver || !ready {
		return false, o.beginAnew(claim)
	}
	if err := o.appendLines(claim); err != nil {
		return false, err
	}
	if err := o.refresh(); err != nil || o.published != nil {
		return true, err
	}
	return true, o.takeUp(sent, apply)
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
	case old != nil && !o.startOver && (old.Plan != o.head.Plan || old.Key != o.head.Key):
		return refuseUnfinished(old, &o.head, o.dst, o.store.Path(o.partial))
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

// removeUnfinished removes unfinished files.
func (o *storeOutput) removeUnfinished() error {
	ids, err := o.store.Uploads(o.partial)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(DefaultIO)
	for name, list := range ids {
		for _, id := range list {
			g.Go(func() error { return o.store.Abort(name, id) })
		}
	}
	for _, x := range o.partials {
		g.Go(func() error { return o.store.Delete(x.Name) })
	}
	return g.Wait()
}

// removeLines removes objects of the journal.
func (o *storeOutput) removeLines(which func(number int) bool) error {
	var g errgroup.Group
	g.SetLimit(DefaultIO)
	for _, x := range o.lines {
		n := 0
		if fmt.Sscanf(x.Name, o.journal+"%d", &n); which(n) {
			g.Go(func() error { return o.store.Delete(x.Name) })
		}
	}
	return g.Wait()
}

// assembleFile has a file be written by the unfinished upload of this id, or by a new one.
func (o *storeOutput) assembleFile(file int, id string) error {
	if o.uploads == nil {
		o.uploads = make([]*weightFile, len(o.plan.Files))
	}
	f := o.plan.Files[file]
	u, err := o.store.Upload(o.partial+f.Name, f.Size, remote.PartSize(f.Size), id)
	if err != nil {
		return err
	}
	header, err := o.plan.Header(file)
	if err != nil {
		return err
	}
	a := remote.Assemble(u, o.writtenSpans(file, int64(len(header))))
	o.uploads[file] = &weightFile{a, sync.OnceValue(func() error {
		header, err := o.plan.Header(file)
		if err != nil {
			return err
		}
		return a.WriteAt(header, 0)
	})}
	return nil
}

// writtenSpans yields the bytes of a file that are written, from begin to end.
func (o *storeOutput) writtenSpans(file int, header int64) iter.Seq2[int64, int64] {
	return func(yield func(begin, end int64) bool) {
		if !yield(0, header) {
			return
		}
		for i := range o.plan.Tensors {
			if t := &o.plan.Tensors[i]; t.File == file && !yield(t.Offset, t.Offset+t.Bytes()) {
				return
			}
		}
	}
}

// takeUp goes on with the files that the journal's run left. Tensors that were sent count only while the store has
// their bytes: it may have removed an unfinished upload. A complete file without a tensor that was sent is made anew.
func (o *storeOutput) takeUp(sent []bool, apply func(progress.Record)) error {
	whole := make([]bool, len(o.plan.Files))
	for i, f := range o.plan.Files {
		x, ok := o.partials[f.Name]
		whole[i] = ok && x.Size == f.Size && (o.etags == nil || x.ETag == o.etags[i])
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
	_, finished := o.objects[o.manifestName()]
	if o.replaces = o.overwrite && len(own) == 0 && finished; o.replaces {
		return o.checkReplaceable()
	}
	names := slices.Sorted(maps.Keys(o.objects))
	i := slices.IndexFunc(names, func(name string) bool { return !slices.Contains(own, name) })
	switch {
	case i < 0:
		return nil
	case !o.overwrite && len(own) == 0 && o.checkReplaceable() == nil:
		return o.isAnother("--overwrite replaces it")
	case o.overwrite:
		return o.checkReplaceable()
	case o.isFile():
		return fmt.Errorf("%s exists already", text.Quote(names[i]))
	}
	return fmt.Errorf("the place is not empty: it holds %s", text.Quote(names[i]))
}

// checkReplaceable demands a readable manifest that lists all objects.
func (o *storeOutput) checkReplaceable() error {
	m, err := o.readManifest(nil)
	if err != nil {
		return fmt.Errorf("cannot be overwritten, as it is not a finished output: %w", err)
	}
	listed := append(m.FileNames(), o.manifestName())
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		if !slices.Contains(listed, name) {
			return fmt.Errorf("cannot be overwritten: it holds %s, which its manifest does not list", text.Quote(name))
		}
	}
	return nil
}

// writeTile writes bytes of a tensor, after the header of its file.
func (o *storeOutput) writeTile(file int, tile []byte, at int64) error {
	if err := o.uploads[file].header(); err != nil {
		return err
	}
	return o.uploads[file].WriteAt(tile, at)
}

func (o *storeOutput) readTile(file int, tile []byte, at int64) error {
	n, err := o.data[file].ReadAt(tile, at)
	if n == len(tile) {
		return nil
	}
	return err
}

func (o *storeOutput) begins() {}

// readable reports false: nobody can read the parts of an unfinished upload.
func (o *storeOutput) readable() bool { return false }

// completeFiles completes all files, after all tensors were written and recorded, and opens them to be read.
func (o *storeOutput) completeFiles() error {
	if o.data != nil {
		return nil
	}
	var g errgroup.Group
	g.SetLimit(DefaultIO)
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
		if o.etags[i] = x.ETag; x.Size != f.Size {
			return fmt.Errorf("%s: has %s, not %s: the store did not keep what was sent", text.Quote(o.path(i)),
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

func (o *storeOutput) openFinished() error {
	dir, err := o.files()
	if err != nil {
		return err
	}
	return o.openData(dir, "")
}

func (o *storeOutput) close() {
	for _, d := range o.data {
		d.Close()
	}
	o.data = nil
}

// record writes the progress of tensors whose parts are all sent into the journal. What is known of the others waits.
func (o *storeOutput) record(n progress.Unrecorded) error {
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

func (o *storeOutput) path(file int) string { return o.store.Path(o.partial + o.plan.Files[file].Name) }

func (o *storeOutput) complete() bool { return o.published != nil }

func (o *storeOutput) replaced() bool { return o.replaces }

// leftovers returns the place of unfinished files.
func (o *storeOutput) leftovers() (dir string, bytes int64) {
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

// commit writes the files without weights beside the others.
func (o *storeOutput) commit(content func(name string) func(io.Writer) error) error {
	for _, name := range o.plan.FinishOrder() {
		if write := content(name); write != nil {
			if err := o.store.Write(o.partial+name, write); err != nil {
				return err
			}
		}
	}
	if err := o.refresh(); err != nil {
		return err
	}
	if err := o.checkInTheWay(nil); err != nil {
		return err
	}
	if o.replaces {
		if err := o.unchanged(); err != nil {
			return err
		}
	}
	for i, f := range o.plan.Files {
		if o.partials[f.Name].ETag != o.etags[i] {
			return fmt.Errorf("%s: was replaced since it was completed", text.Quote(o.path(i)))
		}
	}
	o.published = o.plan.FinishOrder()
	if o.replaces {
		o.older = slices.Sorted(maps.Keys(o.objects))
	}
	if err := o.appendLines(progress.Record{Tensor: -1, Published: o.published, Older: o.older}); err != nil {
		return err
	}
	return o.publish()
}

// publish copies the files to their names, and removes what is not needed any more. A reader of an older output that
// is replaced finds it without its last files, and then the new one without them.
func (o *storeOutput) publish() error {
	if o.movable() {
		if err := o.removeOlder(); err != nil {
			return err
		}
	}
	for _, name := range o.published {
		x, ok := o.partials[name]
		if _, moved := o.objects[name]; !ok && moved {
			continue // by an earlier run, which removed it here
		}
		x.Name = o.partial + name
		if err := o.store.Copy(x, name); err != nil {
			return err
		}
	}
	return o.removeTraces()
}

// movable reports whether all files are still where they were assembled.
func (o *storeOutput) movable() bool {
	for _, name := range o.published {
		if _, ok := o.partials[name]; !ok {
			return false
		}
	}
	return true
}

// removeOlder removes the files of the replaced output, those that a reader starts from first.
func (o *storeOutput) removeOlder() error {
	first := []string{o.plan.Index, checkpoint.ConfigName, o.manifestName(), o.plan.File}
	for _, name := range append(first, o.older...) {
		if !slices.Contains(o.older, name) {
			continue
		}
		if err := o.store.Delete(name); err != nil {
			return err
		}
	}
	return nil
}

// removeTraces removes unfinished files and the journal, whose last object voids the others meanwhile.
func (o *storeOutput) removeTraces() error {
	if err := o.removeUnfinished(); err != nil {
		return err
	}
	last := o.number
	if err := o.appendLines(progress.Record{Tensor: -1, Void: true}); err != nil {
		return err
	}
	if err := o.refresh(); err != nil {
		return err
	}
	if err := o.removeLines(func(n int) bool { return n != last }); err != nil {
		return err
	}
	return o.removeLines(func(n int) bool { return n == last })
}

func (o *storeOutput) replaceManifest(write func(io.Writer) error) error {
	return o.store.Write(o.manifestName(), write)
}

// removeOrphan removes what a run left that died after the output got its name.
func (o *storeOutput) removeOrphan() error {
	if err := o.refresh(); err != nil || len(o.lines) == 0 {
		return err
	}
	head, _, err := o.readLines(func(progress.Record) {})
	if err != nil || head != nil {
		return err // of another run, which may be at work
	}
	return o.removeTraces()
}
