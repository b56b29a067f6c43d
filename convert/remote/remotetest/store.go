package remotetest

import (
	"encoding/xml"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The key that StartStore's store demands, and its secret.
const (
	StoreKey    = "AKIAEXAMPLE"
	StoreSecret = "secretsecret"
)

// StartStore starts a store that speaks S3 with the directories as buckets, and makes it and its key those of
// the settings of AWS until the test ends. Uploads have small parts.
func StartStore(t *testing.T, dirs map[string]string) *Hub {
	t.Helper()
	root := t.TempDir()
	for name, dir := range dirs {
		require.NoError(t, os.Symlink(dir, filepath.Join(root, name)))
	}
	h, settings := NewStore(Directory(root))
	h.useClient(t)
	h.Client.Part = smallestPart
	for name, value := range settings {
		t.Setenv(name, value)
	}
	return h
}

// NewStore starts a store that speaks S3 with the directories of files as buckets, and returns the settings of AWS with
// which it is found. It checks no signature: versitygw does, in scripts/s3.sh. Close ends it.
func NewStore(files Files) (h *Hub, settings map[string]string) {
	h = &Hub{files: files, written: files, Replaced: map[string]string{}, uploads: map[string]*upload{}}
	h.Storage = httptest.NewServer(http.HandlerFunc(h.store))
	none := os.DevNull
	return h, map[string]string{"AWS_ENDPOINT_URL": h.Storage.URL, "AWS_ENDPOINT_URL_S3": "", "AWS_PROFILE": "",
		"AWS_ACCESS_KEY_ID": StoreKey, "AWS_SECRET_ACCESS_KEY": StoreSecret, "AWS_SESSION_TOKEN": "", "AWS_CA_BUNDLE": "",
		"AWS_REGION": "eu-test-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "",
		"AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none}
}

var signature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=` + StoreKey + `/\d{8}/eu-test-1/s3/aws4_request, ` +
	`SignedHeaders=(content-length;)?host;(if-none-match;)?[a-z0-9;-]*x-amz-content-sha256;[a-z0-9;-]*x-amz-date, ` +
	`Signature=[0-9a-f]{64}$`)

// store answers requests to the store. Bucket public needs no key.
func (h *Hub) store(w http.ResponseWriter, r *http.Request) {
	fault := h.record(r)
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case fault == stopped:
		refuseXML(w, http.StatusForbidden, "Stopped")
	case fault == unavailable:
		unavailableNow(w)
	case name == "elsewhere":
		w.Header().Set("X-Amz-Bucket-Region", "us-test-2")
		refuseXML(w, http.StatusMovedPermanently, "PermanentRedirect")
	case name != "public" && !signature.MatchString(r.Header.Get("Authorization")):
		refuseXML(w, http.StatusForbidden, "AccessDenied")
	case !h.isDir(name):
		refuseXML(w, http.StatusNotFound, "NoSuchBucket")
	case r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Query().Has("uploads") ||
		r.URL.Query().Has("uploadId"):
		h.change(w, r, name, key, fault)
	case key == "":
		h.objects(w, r, name)
	default:
		h.send(w, r, fault)
	}
}

func refuseXML(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

// objects answers with a page of the listing.
func (h *Hub) objects(w http.ResponseWriter, r *http.Request, bucket string) {
	type object struct {
		Key, ETag string
		Size      int64
	}
	page := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []object
	}{}
	from := r.URL.Query().Get("continuation-token")
	_ = fs.WalkDir(h.files, bucket, func(name string, d fs.DirEntry, err error) error {
		key := strings.TrimPrefix(name, bucket+"/")
		if !strings.HasPrefix(key, r.URL.Query().Get("prefix")) || d.IsDir() || key <= from {
			return err
		}
		if page.IsTruncated = len(page.Contents) == perPage; page.IsTruncated {
			page.NextContinuationToken = page.Contents[perPage-1].Key
			return fs.SkipAll
		}
		stat, err := fs.Stat(h.files, name)
		if err == nil {
			page.Contents = append(page.Contents, object{key, h.etag("/" + name), stat.Size()})
		}
		return err
	})
	_ = xml.NewEncoder(w).Encode(page)
}
