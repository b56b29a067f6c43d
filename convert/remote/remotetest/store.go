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

	"dsmoe/convert/remote"
)

// The key that StartStore's store demands, and its secret.
const (
	StoreKey    = "AKIAEXAMPLE"
	StoreSecret = "secretsecret"
)

// StartStore starts a store that speaks S3 with the directories as buckets, and makes it and its key those of
// the settings of AWS until the test ends. It checks no signature: versitygw does, in scripts/s3.sh.
func StartStore(t *testing.T, dirs map[string]string) *Hub {
	t.Helper()
	h := &Hub{Root: t.TempDir(), Replaced: map[string]string{}}
	for name, dir := range dirs {
		require.NoError(t, os.Symlink(dir, filepath.Join(h.Root, name)))
	}
	s := httptest.NewServer(http.HandlerFunc(h.store))
	old := remote.Default
	remote.Default = remote.NewClient()
	t.Cleanup(func() { remote.Default = old; s.Close() })
	for name, value := range map[string]string{"AWS_ENDPOINT_URL": s.URL, "AWS_ENDPOINT_URL_S3": "", "AWS_PROFILE": "",
		"AWS_ACCESS_KEY_ID": StoreKey, "AWS_SECRET_ACCESS_KEY": StoreSecret, "AWS_SESSION_TOKEN": "", "AWS_CA_BUNDLE": "",
		"AWS_REGION": "eu-test-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "",
		"AWS_CONFIG_FILE": filepath.Join(h.Root, "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(h.Root, "none")} {
		t.Setenv(name, value)
	}
	return h
}

var signature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=` + StoreKey + `/\d{8}/eu-test-1/s3/aws4_request, ` +
	`SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=[0-9a-f]{64}$`)

// store answers requests to the store. Bucket public needs no key.
func (h *Hub) store(w http.ResponseWriter, r *http.Request) {
	fault := h.record(r)
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	dir := filepath.Join(h.Root, name)
	switch {
	case fault == unavailable:
		unavailableNow(w)
	case name == "elsewhere":
		w.Header().Set("X-Amz-Bucket-Region", "us-test-2")
		refuseXML(w, http.StatusMovedPermanently, "PermanentRedirect")
	case name != "public" && !signature.MatchString(r.Header.Get("Authorization")):
		refuseXML(w, http.StatusForbidden, "AccessDenied")
	case !isDir(dir):
		refuseXML(w, http.StatusNotFound, "NoSuchBucket")
	case key == "":
		h.objects(w, r, dir)
	default:
		h.send(w, r, fault)
	}
}

func refuseXML(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

// objects answers with a page of the listing.
func (h *Hub) objects(w http.ResponseWriter, r *http.Request, dir string) {
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
	resolved, _ := filepath.EvalSymlinks(dir)
	_ = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(resolved, path)
		key := filepath.ToSlash(rel)
		if !strings.HasPrefix(key, r.URL.Query().Get("prefix")) || d.IsDir() || key <= from {
			return err
		}
		if page.IsTruncated = len(page.Contents) == perPage; page.IsTruncated {
			page.NextContinuationToken = page.Contents[perPage-1].Key
			return fs.SkipAll
		}
		stat, err := os.Stat(path)
		if err == nil {
			page.Contents = append(page.Contents, object{key, h.etag("/" + filepath.Base(dir) + "/" + key), stat.Size()})
		}
		return err
	})
	_ = xml.NewEncoder(w).Encode(page)
}
