package remote

// Writing to object stores: what an output needs of s3://BUCKET/PREFIX.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/smithy-go/encoding/httpbinding"

	"dsmoe/text"
)

// Store is a prefix of a bucket that objects are written below. Names are relative to it. Every request can be
// repeated: a try whose answer was lost does no harm.
type Store struct {
	c      *Client
	o      *bucket
	prefix string // "", or ends in "/"
}

// OpenStore finds the store of s3://BUCKET/PREFIX with the Default client. It makes no request.
func OpenStore(path string) (*Store, error) {
	o, prefix, err := openBucket(Default, path)
	if err != nil {
		return nil, about(Name(path), err)
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return &Store{Default, o, prefix}, nil
}

// call makes a request with a body until it is answered, and returns the answer. header may be nil.
func (s *Store) call(method, name string, query url.Values, header http.Header,
	body []byte) ([]byte, http.Header, error) {
	sum := sha256.Sum256(body)
	data, answer, err := s.c.document(func(ctx context.Context) (*http.Request, error) {
		r, err := http.NewRequestWithContext(ctx, method, s.o.url(s.prefix+name, query), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		for k, v := range header {
			r.Header[k] = v
		}
		return r, s.o.sign(r, hex.EncodeToString(sum[:])) // the store compares the body with the signed hash
	}, s.o.explain)
	return data, answer, about(s.o.path(s.prefix+name), err)
}

// errExists is the error of PutNew for an object that exists.
var errExists = errors.New("exists already")

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
	if !errors.As(err, &f) || f.code != http.StatusPreconditionFailed {
		return err
	}
	if have, _, err := s.call(http.MethodGet, name, nil, nil, nil); err != nil || bytes.Equal(have, data) {
		return err
	}
	return about(s.o.path(s.prefix+name), &failure{cause: errExists.Error(), is: fs.ErrExist, final: true})
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

// Upload is an object on its way: parts of one size, the last one may be smaller.
type Upload struct {
	s          *Store
	name, id   string
	size, part int64
	parts      []uploaded
}

// uploaded is a part that the store has; without an ETag it has none.
type uploaded struct {
	PartNumber     int
	ETag           string
	ChecksumSHA256 string `xml:",omitempty"`
}

// Upload takes up the unfinished upload of an object of size bytes, or begins one. The store keeps the hashes of
// its parts.
func (s *Store) Upload(name string, size, part int64) (*Upload, error) {
	return s.upload(name, size, part,
		http.Header{"X-Amz-Checksum-Algorithm": {"SHA256"}, "X-Amz-Checksum-Type": {"COMPOSITE"}})
}

func (s *Store) upload(name string, size, part int64, header http.Header) (*Upload, error) {
	u := &Upload{s: s, name: name, size: size, part: part, parts: make([]uploaded, max((size+part-1)/part, 1))}
	if len(u.parts) > 10_000 {
		return nil, about(s.o.path(s.prefix+name),
			final(fmt.Sprintf("would have more than 10,000 parts of %s", text.Bytes(part))))
	}
	var pending struct {
		Upload []struct{ Key, UploadId string }
	}
	query := url.Values{"uploads": {""}, "prefix": {s.prefix + name}}
	if err := s.ask(http.MethodGet, "", query, nil, nil, &pending); err != nil {
		return nil, err
	}
	for _, p := range pending.Upload {
		if p.Key == s.prefix+name {
			u.id = p.UploadId
			return u, u.list()
		}
	}
	var begun struct{ UploadId string }
	err := s.ask(http.MethodPost, name, url.Values{"uploads": {""}}, header, nil, &begun)
	u.id = begun.UploadId
	return u, err
}

// ask is call for an answer of XML. The bucket itself has the name "".
func (s *Store) ask(method, name string, query url.Values, header http.Header, body []byte, answer any) error {
	if name == "" {
		s = &Store{s.c, s.o, ""}
	}
	data, _, err := s.call(method, name, query, header, body)
	if err == nil {
		if xml.Unmarshal(data, answer) != nil {
			err = about(s.o.path(s.prefix+name), final("what answers does not speak S3"))
		}
	}
	return err
}

// list learns which parts are there. A part of another size than planned is sent again.
func (u *Upload) list() error {
	for marker := "0"; marker != ""; {
		var page struct {
			Part []struct {
				uploaded
				Size int64
			}
			IsTruncated          bool
			NextPartNumberMarker string
		}
		query := url.Values{"uploadId": {u.id}, "part-number-marker": {marker}}
		if err := u.s.ask(http.MethodGet, u.name, query, nil, nil, &page); err != nil {
			return err
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
	return nil
}

func (u *Upload) partSize(i int) int64 { return min(u.part, u.size-int64(i)*u.part) }

// Has reports whether a part is there.
func (u *Upload) Has(i int) bool { return u.parts[i].ETag != "" }

// Send sends a part. Parts are safe to send at once, each once.
func (u *Upload) Send(i int, data []byte) error {
	query := url.Values{"uploadId": {u.id}, "partNumber": {strconv.Itoa(i + 1)}}
	sum := checksum(data)
	_, header, err := u.s.call(http.MethodPut, u.name, query, sum, data)
	u.parts[i] = uploaded{i + 1, header.Get("ETag"), sum.Get("X-Amz-Checksum-Sha256")}
	return err
}

// Finish makes the object of its parts.
func (u *Upload) Finish() error {
	list := struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []uploaded
	}{Part: u.parts}
	if i := slices.IndexFunc(u.parts, func(p uploaded) bool { return p.ETag == "" }); i >= 0 {
		return about(u.s.o.path(u.s.prefix+u.name), final(fmt.Sprintf("part %d is missing", i+1)))
	}
	body, err := xml.Marshal(list)
	if err != nil {
		return err
	}
	answer, _, err := u.s.call(http.MethodPost, u.name, url.Values{"uploadId": {u.id}}, nil, body)
	if err == nil && bytes.Contains(answer, []byte("<Error")) { // a store answers 200 before it knows
		err = about(u.s.o.path(u.s.prefix+u.name), final("the store could not join the parts"))
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

// copyPart is the most bytes that are copied by one request.
const copyPart = 1 << 30

// Copy gives the bytes of an object of size bytes another name too, without moving them.
func (s *Store) Copy(from, to string, size int64) error {
	source := http.Header{"X-Amz-Copy-Source": {httpbinding.EscapePath("/"+s.o.name+"/"+s.prefix+from, false)}}
	u, err := s.upload(to, size, copyPart, nil)
	for i := range u.parts {
		if err != nil {
			return err
		}
		if u.Has(i) {
			continue
		}
		begin := int64(i) * copyPart
		source.Set("X-Amz-Copy-Source-Range", fmt.Sprintf("bytes=%d-%d", begin, begin+u.partSize(i)-1))
		query := url.Values{"uploadId": {u.id}, "partNumber": {strconv.Itoa(i + 1)}}
		var copied struct{ ETag string }
		err = s.ask(http.MethodPut, to, query, source, nil, &copied)
		u.parts[i] = uploaded{i + 1, copied.ETag, ""}
		if err == nil && copied.ETag == "" {
			err = about(s.o.path(s.prefix+to), final("the store could not copy a part")) // it answers 200 before it knows
		}
	}
	if err != nil {
		return err
	}
	return u.Finish()
}
