package remote

// Writing to object stores: requests that an output in s3://BUCKET/PREFIX needs.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/smithy-go/encoding/httpbinding"
	"golang.org/x/sync/errgroup"

	"dsmoe/convert/source"
	"dsmoe/text"
)

// Store is a prefix of a bucket that objects are written below. Names are relative to it. Every request can be
// repeated: a try whose answer was lost does no harm.
type Store struct {
	c      *Client // waits long for an answer: the store may have to move gigabytes before it
	reader *Client // reads written objects, without a cache
	o      *bucket
	prefix string // "", or ends in "/"
	parts  parts
}

// OpenStore finds the store of s3://BUCKET/PREFIX. It makes no request. The store's clients have the settings of c,
// without its caches.
func (c *Client) OpenStore(path string) (*Store, error) {
	o, prefix, err := openBucket(c, path)
	if prefix = strings.Trim(prefix, "/"); err == nil && prefix != "" && !fs.ValidPath(prefix) {
		err = final("is not s3://BUCKET/PREFIX") // the listing leaves such names out
	}
	if err != nil {
		return nil, about(Name(path), err)
	}
	if prefix != "" {
		prefix += "/"
	}
	s := &Store{c: NewClient(), reader: NewClient(), o: o, prefix: prefix}
	for _, own := range []*Client{s.c, s.reader} {
		own.Context, own.Part, own.Wait, own.Waiting = c.Context, c.Part, c.Wait, c.Waiting
	}
	s.c.http.Transport.(*http.Transport).ResponseHeaderTimeout = maxDocument
	return s, nil
}

// Path is the URL of an object; "" is the store's own.
func (s *Store) Path(name string) string { return s.o.path(s.prefix + name) }

// List lists the objects whose names begin with prefix.
func (s *Store) List(prefix string) ([]Entry, error) {
	d, err := s.dir(prefix)
	if err != nil {
		return nil, err
	}
	return d.listed, nil
}

// Dir is the directory of those objects, as they are now, that keep chooses and whose names begin with prefix.
func (s *Store) Dir(prefix string, keep func(name string) bool) (source.Dir, error) {
	d, err := s.dir(prefix)
	if err != nil {
		return nil, err
	}
	d.listed = slices.DeleteFunc(d.listed, func(e Entry) bool { return !keep(e.Name) })
	return d, nil
}

func (s *Store) dir(prefix string) (*dir, error) {
	o := *s.o
	o.etags = map[string]string{} // of this listing
	d := &dir{c: s.reader, o: &o, below: s.prefix, all: true, files: map[string]*file{}}
	listed, _, err := o.list(s.c, s.prefix+prefix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no object is a directory without files
		return nil, about(s.Path(prefix), err)
	}
	d.take(listed)
	return d, nil
}

// call makes a request with a body until it is answered, and returns the answer. header may be nil.
func (s *Store) call(method, name string, query url.Values, header http.Header,
	body []byte) ([]byte, http.Header, error) {
	sum, err := base64.StdEncoding.DecodeString(header.Get("X-Amz-Checksum-Sha256"))
	if err != nil || len(sum) == 0 {
		hash := sha256.Sum256(body)
		sum = hash[:]
	}
	lent := &loan{data: body}
	defer lent.end()
	data, answer, err := s.c.document(s.Path(name), func(ctx context.Context) (*http.Request, error) {
		r, err := http.NewRequestWithContext(ctx, method, s.o.url(s.prefix+name, query), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		if len(body) > 0 {
			r.Body, _ = lent.body()
			r.GetBody = lent.body
		}
		for k, v := range header {
			r.Header[k] = v
		}
		return r, s.o.sign(r, hex.EncodeToString(sum)) // the store compares the body with the signed hash
	}, s.o.explain)
	return data, answer, about(s.Path(name), err)
}

// loan is the bytes of a request's body. A transport may read a body after the answer came, when the bytes are the
// caller's again: the end of the loan ends its bodies.
type loan struct {
	mu   sync.RWMutex
	data []byte // nil after the end
}

func (l *loan) body() (io.ReadCloser, error) { return io.NopCloser(&lentBody{l, 0}), nil }

func (l *loan) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = nil
}

// lentBody reads the bytes of a loan from at on.
type lentBody struct {
	of *loan
	at int
}

func (b *lentBody) Read(dst []byte) (int, error) {
	b.of.mu.RLock()
	defer b.of.mu.RUnlock()
	if b.at >= len(b.of.data) {
		return 0, io.EOF // a transport that still writes misses bytes then, and fails
	}
	n := copy(dst, b.of.data[b.at:])
	b.at += n
	return n, nil
}

// Put writes a small object.
func (s *Store) Put(name string, data []byte) error {
	_, _, err := s.call(http.MethodPut, name, nil, checksum(data), data)
	return err
}

// PutNew is Put for an object that must not exist, and an error of fs.ErrExist if one does, unless it holds the
// same bytes: a try whose answer was lost may have written them.
func (s *Store) PutNew(name string, data []byte) error {
	header := checksum(data)
	header.Set("If-None-Match", "*")
	_, _, err := s.call(http.MethodPut, name, nil, header, data)
	var f *failure
	if !errors.As(err, &f) || f.code != http.StatusPreconditionFailed && f.code != http.StatusConflict {
		return err
	}
	have, getErr := s.Get(name)
	if getErr != nil && !errors.Is(getErr, fs.ErrNotExist) || getErr == nil && bytes.Equal(have, data) {
		return getErr
	}
	return about(s.Path(name), &failure{cause: "exists already", is: fs.ErrExist, final: true})
}

// Get reads a small object.
func (s *Store) Get(name string) ([]byte, error) {
	data, _, err := s.call(http.MethodGet, name, nil, nil, nil)
	return data, err
}

// checksum has the store keep and compare the hash of an object or a part.
func checksum(data []byte) http.Header {
	sum := sha256.Sum256(data)
	return http.Header{"X-Amz-Checksum-Sha256": {base64.StdEncoding.EncodeToString(sum[:])}}
}

// Delete removes an object; one that does not exist is removed.
func (s *Store) Delete(name string) error {
	_, _, err := s.call(http.MethodDelete, name, nil, nil, nil)
	return err
}

// upload is an object on its way: parts of one size, the last one may be smaller.
type upload struct {
	s          *Store
	name       string
	size, part int64

	header    http.Header
	beginning sync.Mutex
	id        string // "" until the first part is sent
	sent      sync.Mutex
	parts     []uploaded
}

// uploaded is a part that the store has; without an ETag it has none.
type uploaded struct {
	PartNumber     int
	ETag           string
	ChecksumSHA256 string `xml:",omitempty"`
}

// maxParts is the most parts of an object.
const maxParts = 10_000

// Upload is the upload of an object of size bytes. It goes on with the unfinished one of this id, of Uploads; with
// "" it begins anew. The store keeps the hashes of its parts. A part of another size than planned is sent again.
// Send(i, data) sends part i, Has(i) reports whether the store has it, and Finish makes the object of all parts.
func (s *Store) Upload(name string, size, part int64, id string) (*upload, error) {
	u := &upload{s: s, name: name, size: size, part: part, id: id, parts: make([]uploaded, max((size+part-1)/part, 1)),
		header: http.Header{"X-Amz-Checksum-Algorithm": {"SHA256"}, "X-Amz-Checksum-Type": {"COMPOSITE"}}}
	if len(u.parts) > maxParts {
		return nil, about(s.Path(name), final(fmt.Sprintf("would have more than %d parts of %s", maxParts, text.Bytes(part))))
	}
	if id == "" {
		return u, nil
	}
	read := pages{}
	for marker := "0"; marker != ""; {
		if err := read.read(marker); err != nil {
			return nil, about(s.Path(name), err)
		}
		var page struct {
			Part []struct {
				uploaded
				Size int64
			}
			IsTruncated          bool
			NextPartNumberMarker string
		}
		query := url.Values{"uploadId": {id}, "part-number-marker": {marker}}
		if err := s.ask(http.MethodGet, name, query, nil, nil, &page); err != nil {
			return nil, err
		}
		for _, p := range page.Part {
			if i := p.PartNumber - 1; i >= 0 && i < len(u.parts) && p.Size == u.partSize(i) {
				u.parts[i] = p.uploaded
			}
		}
		if marker = page.NextPartNumberMarker; !page.IsTruncated {
			marker = ""
		}
	}
	return u, nil
}

// Uploads returns the ids of unfinished uploads whose names begin with prefix. An object may have several.
func (s *Store) Uploads(prefix string) (ids map[string][]string, err error) {
	ids = map[string][]string{}
	query := url.Values{"uploads": {""}, "prefix": {s.prefix + prefix}}
	read := pages{}
	for more := true; more; {
		if err := read.read(query.Get("key-marker") + " " + query.Get("upload-id-marker")); err != nil {
			return nil, about(s.Path(prefix), err)
		}
		var page struct {
			Upload                            []struct{ Key, UploadId string }
			IsTruncated                       bool
			NextKeyMarker, NextUploadIdMarker string
		}
		if err := s.ask(http.MethodGet, "", query, nil, nil, &page); err != nil {
			return nil, err
		}
		for _, u := range page.Upload {
			if name, ok := strings.CutPrefix(u.Key, s.prefix); ok {
				ids[name] = append(ids[name], u.UploadId)
			}
		}
		more = page.IsTruncated && len(page.Upload) > 0
		query.Set("key-marker", page.NextKeyMarker)
		query.Set("upload-id-marker", page.NextUploadIdMarker)
	}
	return ids, nil
}

// Abort ends an unfinished upload and removes its parts.
func (s *Store) Abort(name, id string) error {
	_, _, err := s.call(http.MethodDelete, name, url.Values{"uploadId": {id}}, nil, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// begin makes the store expect parts.
func (u *upload) begin() error {
	u.beginning.Lock()
	defer u.beginning.Unlock()
	if u.id != "" {
		return nil
	}
	var answer struct{ UploadId string }
	err := u.s.ask(http.MethodPost, u.name, url.Values{"uploads": {""}}, u.header, nil, &answer)
	u.id = answer.UploadId
	return err
}

// ask is call for an answer of XML. The bucket itself has the name "".
func (s *Store) ask(method, name string, query url.Values, header http.Header, body []byte, answer any) error {
	if name == "" {
		s = &Store{c: s.c, o: s.o}
	}
	data, _, err := s.call(method, name, query, header, body)
	if err == nil {
		if xml.Unmarshal(data, answer) != nil {
			err = about(s.Path(name), final("what answers does not speak S3"))
		}
	}
	return err
}

func (u *upload) partSize(i int) int64 { return min(u.part, u.size-int64(i)*u.part) }

// Has reports whether a part is there.
func (u *upload) Has(i int) bool {
	u.sent.Lock()
	defer u.sent.Unlock()
	return u.parts[i].ETag != ""
}

// Send sends a part. Parts are safe to send at once, each once.
func (u *upload) Send(i int, data []byte) error {
	if err := u.begin(); err != nil {
		return err
	}
	query := url.Values{"uploadId": {u.id}, "partNumber": {strconv.Itoa(i + 1)}}
	sum := checksum(data)
	_, header, err := u.s.call(http.MethodPut, u.name, query, sum, data)
	if err == nil {
		u.sent.Lock()
		defer u.sent.Unlock()
		u.parts[i] = uploaded{i + 1, header.Get("ETag"), sum.Get("X-Amz-Checksum-Sha256")}
	}
	return err
}

// Finish makes the object of its parts.
func (u *upload) Finish() error {
	list := struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []uploaded
	}{Part: u.parts}
	if i := slices.IndexFunc(u.parts, func(p uploaded) bool { return p.ETag == "" }); i >= 0 {
		return about(u.s.Path(u.name), final(fmt.Sprintf("part %d is missing", i+1)))
	}
	body, err := xml.Marshal(list)
	if err != nil {
		return err
	}
	answer, _, err := u.s.call(http.MethodPost, u.name, url.Values{"uploadId": {u.id}}, nil, body)
	if err == nil && bytes.Contains(answer, []byte("<Error")) { // a store answers 200 before it knows
		err = about(u.s.Path(u.name), final("the store could not join the parts"))
	}
	var f *failure
	if errors.As(err, &f) && f.is != nil { // an earlier try, whose answer was lost, finished it
		_, header, headErr := u.s.call(http.MethodHead, u.name, nil, nil, nil)
		if headErr == nil && header.Get("Content-Length") == strconv.FormatInt(u.size, 10) {
			return nil
		}
	}
	return err
}

// Copies by the store.
const (
	partsPerCopy = 50 // that one request copies
	copies       = 8  // requests at once
)

// Copy gives the bytes of an object another name too, without moving them. An object that was replaced since it was
// listed is an error.
func (s *Store) Copy(from Entry, to string) error {
	source := func() http.Header {
		return http.Header{"X-Amz-Copy-Source": {httpbinding.EscapePath("/"+s.o.name+"/"+s.prefix+from.Name, false)},
			"X-Amz-Copy-Source-If-Match": {`"` + from.Identity + `"`}}
	}
	copyPart := max(partsPerCopy*s.c.Part, s.c.PartSize(from.Size))
	if from.Size <= copyPart {
		return s.copied(to, nil, source(), &uploaded{})
	}
	u := &upload{s: s, name: to, size: from.Size, part: copyPart, parts: make([]uploaded, (from.Size+copyPart-1)/copyPart)}
	if err := u.begin(); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(copies)
	for i := range u.parts {
		g.Go(func() error {
			begin, part := int64(i)*copyPart, source()
			part.Set("X-Amz-Copy-Source-Range", fmt.Sprintf("bytes=%d-%d", begin, begin+u.partSize(i)-1))
			u.parts[i].PartNumber = i + 1
			return s.copied(to, url.Values{"uploadId": {u.id}, "partNumber": {strconv.Itoa(i + 1)}}, part, &u.parts[i])
		})
	}
	if err := g.Wait(); err != nil {
		return errors.Join(err, s.Abort(to, u.id))
	}
	return u.Finish()
}

// copied has the store copy an object or a part. It answers 200 before it knows whether it can.
func (s *Store) copied(to string, query url.Values, source http.Header, part *uploaded) error {
	var answer struct{ ETag string }
	err := s.ask(http.MethodPut, to, query, source, nil, &answer)
	if part.ETag = answer.ETag; err == nil && answer.ETag == "" {
		err = about(s.Path(to), final("the store could not copy it"))
	}
	return err
}

// PartSize returns the size of the parts of an object of size bytes: the smallest, unless they would be too many.
func (c *Client) PartSize(size int64) int64 {
	const unit = 1 << 20
	if size <= c.Part*maxParts {
		return c.Part
	}
	return (size/maxParts + unit) &^ (unit - 1)
}

// parts is the memory of parts: those that were sent serve the next ones.
type parts struct {
	mu   sync.Mutex
	idle [][]byte
}

// take returns n zero bytes, with capacity for at least most bytes.
func (p *parts) take(n, most int64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 || int64(cap(p.idle[last])) < n {
		return make([]byte, n, max(n, most))
	}
	b := p.idle[last][:n]
	p.idle = p.idle[:last]
	clear(b)
	return b
}
