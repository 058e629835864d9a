//! Projects of users.

use jiff::Timestamp;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder};

use super::entity::project;
use super::{Damage, Records, RecordsError, cannot};
use crate::id::{ProjectId, UserId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRecord {
    pub id: ProjectId,
    pub user: UserId,
    pub name: String,
    pub created_at: Timestamp,
}

fn from_row(row: project::Model) -> Result<ProjectRecord, Damage> {
    Ok(ProjectRecord {
        id: row.id.parse()?,
        user: row.user.parse()?,
        name: row.name,
        created_at: Timestamp::from_microsecond(row.created_at_us)?,
    })
}

impl Records {
    /// The user's project with this name, created if it does not exist.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn ensure_project(&self, user: &UserId, name: &str) -> Result<ProjectRecord, RecordsError> {
        self.add_project(user, name).await.map(|(project, _)| project)
    }

    /// The same, and whether this call created it: true for one of several concurrent calls.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn add_project(&self, user: &UserId, name: &str) -> Result<(ProjectRecord, bool), RecordsError> {
        let id = ProjectId::new();
        let row = project::Model {
            id: id.to_string(),
            user: user.to_string(),
            name: name.to_owned(),
            created_at_us: Timestamp::now().as_microsecond(),
            builds: 0,
        };
        let known = OnConflict::columns([project::Column::User, project::Column::Name]).do_nothing().to_owned();
        let made = project::Entity::insert(row.into_active_model()).on_conflict(known);
        made.exec_without_returning(&self.database).await.map_err(cannot("write"))?;
        let row = project::Entity::find()
            .filter(project::Column::User.eq(user.as_str()))
            .filter(project::Column::Name.eq(name))
            .one(&self.database)
            .await
            .map_err(cannot("read"))?;
        let row = row.ok_or("a project that was just made is gone").map_err(cannot("read"))?;
        let project = from_row(row).map_err(cannot("understand"))?;
        let made = project.id == id;
        Ok((project, made))
    }

    /// The project, if it belongs to the user.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn project(&self, user: &UserId, id: &ProjectId) -> Result<Option<ProjectRecord>, RecordsError> {
        let row = project::Entity::find_by_id(id.as_str())
            .filter(project::Column::User.eq(user.as_str()))
            .one(&self.database)
            .await
            .map_err(cannot("read"))?;
        row.map(|row| from_row(row).map_err(cannot("understand"))).transpose()
    }

    /// The user's projects, the newest first.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn projects(&self, user: &UserId) -> Result<Vec<ProjectRecord>, RecordsError> {
        let rows = project::Entity::find()
            .filter(project::Column::User.eq(user.as_str()))
            .order_by_desc(project::Column::CreatedAtUs)
            .order_by_desc(project::Column::Id)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read: Result<Vec<_>, Damage> = rows.into_iter().map(from_row).collect();
        read.map_err(cannot("understand"))
    }
}
